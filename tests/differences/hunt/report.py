"""Count what came of the rows, and write the report."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

BAD = ("false hit", "wrong")
MODES = ("frames", "traced")
CONTROL = "control"
"""The group of rows in which nothing differs: each is to be a hit."""


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def problems(result: Mapping[str, Any]) -> list[str]:
    """Return a line for each false hit, silent compile, hit that was lost, and planted hole that was not
    found."""
    return [*_found(result), *_unseen_holes(result)]


def _found(result: Mapping[str, Any]) -> Iterator[str]:
    for row, mode, run in runs(result):
        if row["planted"]:
            continue
        where = f"{row['group']}: {row['name']} [{row['direction']} differs, {mode}]"
        if row["group"] == CONTROL and run["verdict"] != "right":
            yield f"lost: {where}: {run['verdict']} {'; '.join(run.get('reasons', ()))}"
        if run["verdict"] in BAD:
            yield f"{run['verdict']}: {where}: {run['why']}"
        elif run.get("silent"):
            yield f"silent: {where}: {run['state']}, {run['compiled']} compiled"


def _unseen_holes(result: Mapping[str, Any]) -> Iterator[str]:
    for group, (found, planted) in holes(result).items():
        if planted and not found:
            yield f"planted: no hole of {group} was found"


def holes(result: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return for each group how many planted holes were found, and how many could be."""
    counts: dict[str, tuple[int, int]] = {}
    for row in result["rows"]:
        verdicts = [run["verdict"] for run in row["runs"].values()]
        if row["planted"] and row.get("visible") and set(verdicts) & {*BAD, "right"}:
            found, planted = counts.get(row["group"], (0, 0))
            counts[row["group"]] = (found + bool(set(verdicts) & {*BAD}), planted + 1)
    return counts


def runs(result: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Yield each run with its row and its mode."""
    for row in result["rows"]:
        for mode, run in row["runs"].items():
            yield row, mode, run


def counts(result: Mapping[str, Any]) -> dict[str, dict[str, Counter[str]]]:
    """Return for each group and mode how often each verdict came."""
    found: dict[str, dict[str, Counter[str]]] = {}
    for row in result["rows"]:
        if row["planted"]:
            continue
        group = found.setdefault(row["group"], {mode: Counter() for mode in ("rows", *MODES)})
        group["rows"]["applied" if row["applied"] else "not applied"] += 1
        group["rows"]["visible"] += bool(row.get("visible"))
        for mode, run in row["runs"].items():
            group[mode][run["verdict"]] += 1
            group[mode]["silent"] += bool(run.get("silent"))
    return found


def text(result: Mapping[str, Any]) -> str:
    """Return a line for each group, and the problems."""
    lines = [
        f"torch {result['torch']}: {len(result['rows'])} rows in {result.get('minutes')} minutes, "
        f"{result.get('cpu_minutes')} of CPU"
    ]
    for group, modes in counts(result).items():
        said = [f"{mode} ({_listed(modes[mode])})" for mode in ("rows", *MODES) if modes[mode]]
        found, planted = holes(result).get(group, (0, 0))
        lines.append(f"  {group:18} {', '.join(said)}, planted {found}/{planted}")
    return "\n".join([*lines, *problems(result)])


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in sorted(counter.items()) if number)


def write(path: Path, results: Mapping[str, Any]) -> None:
    """Write the rows as JSON, and the report beside it. What was not tried again stays."""
    every = read(path) if path.exists() else {}
    for version, result in results.items():
        every[version] = _merged(every.get(version, {"rows": []}), shortened(result))
    versions = []
    for version in sorted(every, key=_number):
        rows = ",\n".join(json.dumps(row) for row in every[version]["rows"])
        about = json.dumps({name: value for name, value in every[version].items() if name != "rows"})
        versions.append(f'{json.dumps(version)}: {about[:-1]}, "rows": [\n{rows}]}}')
    path.write_text("{" + ",\n".join(versions) + "}\n")
    path.with_suffix(".md").write_text(markdown({name: every[name] for name in sorted(every, key=_number)}))


def _merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return two results of a version as one; a row that was tried again is the new one."""
    names = ("group", "name", "direction", "planted")
    rows = {tuple(row[name] for name in names): row for row in (*before["rows"], *now["rows"])}
    spent = {name: round(before.get(name, 0) + now.get(name, 0), 1) for name in ("minutes", "cpu_minutes")}
    return {**now, **spent, "rows": [*rows.values()]}


_KEPT = ("verdict", "why", "state", "compiled", "silent")


def shortened(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with what the report says: one reason of each row, and more of each problem."""
    return {**result, "rows": [_short(row) for row in result["rows"]]}


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    short = {name: row[name] for name in ("group", "name", "direction", "planted", "applied")}
    short |= {"visible": row.get("visible"), "runs": {}}
    for mode, run in row["runs"].items():
        plain = run["verdict"] in ("right", "missed") and not run.get("silent")
        short["runs"][mode] = (
            {"verdict": run["verdict"]} if plain else {name: run[name] for name in _KEPT if name in run}
        )
    missed = [run for run in row["runs"].values() if run["verdict"] == "missed"]
    reasons = {
        "refused": row.get("refused", ()),
        "missed": missed[0].get("reasons", ()) if missed else (),
        "why": [row["why"].strip().splitlines()[-1]] if row.get("why") else (),
    }
    return short | {name: _plain(texts[0]) for name, texts in reasons.items() if texts}


def _number(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


# The page ---------------------------------------------------------------------------------------

_COLUMNS = ("right", "missed", "pytorch", "not judged", "failed", "silent", "wrong", "false hit")


def markdown(results: Mapping[str, Any]) -> str:
    """Return the report as a page."""
    parts = ["# The hunt for false hits", "", "Generated by `python -m tests.differences.hunt`.", ""]
    for version, result in results.items():
        parts += [f"## torch {version}", "", *_summary(result), "", *_table(result), ""]
        parts += _list("False hits", result, lambda run: run["verdict"] in BAD)
        parts += _list("Silent", result, lambda run: bool(run.get("silent")))
        parts += _list("PyTorch's own faults", result, lambda run: run["verdict"] == "pytorch")
        parts += _reasons(result)
    return "\n".join(parts)


def _summary(result: Mapping[str, Any]) -> list[str]:
    tried = [row for row in result["rows"] if row["applied"] and not row["planted"]]
    visible = sum(bool(row.get("visible")) for row in tried)
    cpu = result.get("cpu_minutes") or 0
    rate = f" ({len(tried) / cpu:.0f} a minute of one core)" if cpu else ""
    spent = f" in {result['minutes']} minutes, {cpu} minutes of CPU{rate}" if result.get("minutes") else ""
    return [
        f"Client {result.get('client')}, {result.get('date')}, seed {result['seed']}: {len(tried)} "
        f"differences{spent}; eager's answer is another one in {visible} of them."
    ]


def _table(result: Mapping[str, Any]) -> list[str]:
    lines = [
        f"| group | run | tried | {' | '.join(_COLUMNS)} | planted holes found |",
        "|---" * (len(_COLUMNS) + 4) + "|",
    ]
    for group, modes in counts(result).items():
        found, planted = holes(result).get(group, (0, 0))
        for mode in (one for one in MODES if modes[one]):
            cells = " | ".join(str(modes[mode][name] or "") for name in _COLUMNS)
            tried = modes["rows"]["applied"]
            lines.append(f"| {group} | {mode} | {tried} | {cells} | {found} of {planted} |")
    return lines


def _list(title: str, result: Mapping[str, Any], wanted: Callable[[Mapping[str, Any]], bool]) -> list[str]:
    lines = [
        f"| {row['group']}: {row['name']} | {row['direction']} | {mode} | {_error(run)} |"
        for row, mode, run in runs(result)
        if wanted(run) and not row["planted"]
    ]
    head = [f"### {title}: {len(lines)}", ""]
    table = ["| what differs | where | run | error |", "|---|---|---|---|"] if lines else []
    return [*head, *table, *(line.replace("\n", " ") for line in lines), ""]


def _error(run: Mapping[str, Any]) -> str:
    return str(run.get("why") or f"{run['state']}, {run['compiled']} compiled")


_NAMES = re.compile(
    r"\S*hunt_\d+\S*|[0-9a-f]{8,}|\d+|G\['\w+'\]\S*|tests\.differences\.hunt\S*|'[^']*'"
    r"|^traced all the same: "
)
"""Matches what is a row's own in a reason."""


def _reasons(result: Mapping[str, Any]) -> list[str]:
    """Return why something was not recorded or not reused, the most frequent reasons first."""
    lines = []
    for title, name in (("Not recorded", "refused"), ("Missed", "missed"), ("Not applied", "why")):
        reasons = Counter(row[name] for row in result["rows"] if name in row)
        lines += [f"### {title}: {reasons.total()}", "", "| rows | reason |", "|---|---|"]
        lines += [f"| {number} | {reason} |" for reason, number in reasons.most_common(20)]
        lines.append("")
    return lines


def _plain(reason: str) -> str:
    return _NAMES.sub("_", " ".join(reason.split()))[:100].replace("|", "\\|")
