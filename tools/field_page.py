"""``python -m tools.field_page``: writes the table of caches into docs/benchmarks.md, from what
``python -m benchmarks.field`` noted."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Iterator
from typing import Any

from benchmarks.field import situations
from tools.markdown import DOCS, table, with_section

PAGE = DOCS / "benchmarks.md"
RESULT = DOCS.parent / "benchmarks" / "results" / "field.json"
PARTS = ("starts", "differences")
COLD = "none: each process compiles"
COLUMNS = (
    "cache",
    "what is set",
    "restarts that compiled nothing",
    "hosts where it compiled nothing",
    "starts broken",
    "false hits / differences",
    "first call / cold",
)


def render() -> str:
    """Return the whole page, with the table in its place."""
    return with_section(
        PAGE.read_text(), "benchmarks/results/field.json", _lines(json.loads(RESULT.read_text()))
    )


def _lines(report: dict[str, Any]) -> list[str]:
    torch, cores = report["torch"].partition("+")[0], report["hardware"]["cpus"]
    when = [f"{part} {report[part]['date'][:10]}, source {report[part]['commit']}" for part in PARTS]
    caches = report["caches"]
    tried = [{one["situation"] for one in told["starts"]} for name, told in caches.items() if name != COLD]
    everywhere = set.intersection(*tried)
    for told in caches.values():
        told["starts"] = [one for one in told["starts"] if one["situation"] in everywhere]
    names = [situation.name for situation in situations.ALL]
    left_out = ", ".join(name for name in names if name not in everywhere)
    head = f"torch {torch}, {cores} cores; {'; '.join(when)}, seed {report['differences']['seed']}"
    rows = [row(name, told, seconds(caches[COLD])) for name, told in caches.items()]
    head += f"; not tried: {left_out}:" if left_out else ":"
    false = "; ".join(dict.fromkeys(_false_hits(caches)))
    wrapped = [textwrap.wrap(text, 120) for text in (head, f"The false hits of PyTorch's caches: {false}.")]
    return [*wrapped[0], "", *table(COLUMNS, rows), "", *wrapped[1]]


def _false_hits(caches: dict[str, Any]) -> Iterator[str]:
    for told in caches.values():
        for one in told["differences"]:
            if "false hit" in one["verdicts"].values():
                yield f"{one['group']}: `{one['name']}` in the {one['direction']}"


def row(name: str, told: dict[str, Any], cold: float) -> tuple[str, ...]:
    """Return the cells of one cache."""
    counted = [counts(told["starts"], kind) for kind in ("restarts", "hosts")]
    bad = [one["outcome"] for one in told["starts"] if one["outcome"] in ("broken", "wrong")]
    wrong = f", {bad.count('wrong')} of them wrong numbers" if "wrong" in bad else ""
    tried = [one for one in told.get("differences", ()) if one["applied"] and one["group"] != "control"]
    false = sum("false hit" in one["verdicts"].values() for one in tried)
    ratio = f"{seconds(told) / cold:.2f}" if cold and told["starts"] else "not measured"
    broken = f"{len(bad)} of {len(told['starts'])}{wrong}"
    return (name, told["setting"], *counted, broken, f"{false} / {len(tried)}", ratio)


def counts(starts: list[dict[str, Any]], kind: str) -> str:
    """Return how many starts of a kind hit."""
    outcomes = [one["outcome"] for one in starts if one["kind"] == kind]
    return f"{outcomes.count('hit')} of {len(outcomes)}" if outcomes else "not tried"


def seconds(told: dict[str, Any]) -> float:
    """Return the seconds of a first call, the median of the restarts that were alone; 0 without any."""
    alone = [one for one in told["starts"] if one["kind"] == "restarts" and one["situation"] != "two at once"]
    spent = [one["seconds"] for one in alone if "seconds" in one]
    return statistics.median(spent) if spent else 0.0


if __name__ == "__main__":
    PAGE.write_text(render())
