"""Show that code compiled under one setting of a process is not restored under another setting.

``python benchmarks/gpu/false_hits.py --out DIR [--device cpu] [--one-way]``

For each direction (first values of all settings, then second values) three fresh processes, each on a host of
its own: a builder publishes a bundle; a process with the same settings must restore all of it, with no
compilation, no compiler on its PATH and outputs equal to the bit; a process with the other settings must
compile each program anew, with eager's dtype and numbers. Prints a table, writes ``DIR/false_hits.json`` and
ends with status 1 if anything is not so. Needs torch and what the client needs; no network.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "client")]

from benchmarks.hosts import QUICK, Host, trap  # noqa: E402
from cachesvc_client.bundle.seal import SigningKey  # noqa: E402

PROGRAM = str(ROOT / "benchmarks" / "gpu" / "settings.py")
OTHER = {"first": "second", "second": "first"}
ALIKE_ON_A_GPU = ("attention before", "threads", "threads, FX key alone")
"""Cases whose setting does not change code for a GPU: the code must be restored under both values."""


def main() -> None:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row
            for which in ("first", "second")[: 1 if options.one_way else 2]
            for row in direction(Path(folder, which), which, options.device)
        ]
    about = {name: rows[0]["process"].get(name) for name in ("torch", "python", "gpu")}
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "device": options.device,
        "machine": platform.machine(),
        **about,
        "rows": rows,
        "problems": [f"{row['name']}: {problem}" for row in rows for problem in row["problems"]],
    }
    (options.out / "false_hits.json").write_text(json.dumps(result, indent=1))
    print(table(result))
    sys.exit(bool(result["problems"]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--one-way", action="store_true", help="only from the first values to the second")
    return parser.parse_args()


def direction(place: Path, which: str, device: str) -> list[dict[str, Any]]:
    """Build under the values ``which``, restore under these and under the others, and judge both."""
    place.mkdir(parents=True)
    key = SigningKey.generate()
    key.save(place / "signing.key")
    bundle, outputs = place / "settings.cachesvc", place / "builder.pt"
    publish = ("--publish", str(bundle), "--key", str(place / "signing.key"))
    restore = ("--restore", str(bundle), "--expect", str(outputs))
    trusted = {"CACHESVC_TRUSTED_KEYS": str(key.public)}
    built = _process(place, "builder", which, device, *publish)
    path = {"PATH": str(trap(place / "trap"))}
    same = _process(place, "same", which, device, *restore, "--restorable", **trusted, **path)
    called = place / "trap" / "called"
    same["called"] = called.read_text().split() if called.exists() else []
    other = _process(place, "other", OTHER[which], device, *restore, **trusted)
    return [
        _row(f"{which} values, builder", built, _numbers),
        _row(f"{which} values, same settings", same, _is_hit),
        _row(f"{which} values, other settings", other, lambda *case: _is_no_false_hit(device, *case)),
    ]


def _process(
    place: Path, name: str, which: str, device: str, *arguments: str, **variables: str
) -> dict[str, Any]:
    """Run one process on a host of its own. Return the answer that it wrote."""
    answer = place / f"{name}.json"
    common = {
        "CACHESVC_DEADLINE": "60",
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}:{_pythonpath()}",
        **QUICK,
    }
    Host(place / name).run(PROGRAM, which, device, str(answer), *arguments, **common, **variables)
    result: dict[str, Any] = json.loads(answer.read_text())
    return result


def _pythonpath() -> str:
    import os

    return os.environ.get("PYTHONPATH", "")


# Judging --------------------------------------------------------------------------------------


def _row(name: str, process: dict[str, Any], judge: Any) -> dict[str, Any]:
    problems = [
        f"{case}: {problem}" for case, outcome in process["cases"].items() for problem in judge(case, outcome)
    ]
    if process.get("called"):
        problems.append(f"compilers were called: {', '.join(process['called'])}")
    if "same settings" in name and process["state"] != "hit":
        problems.append(f"the report says {process['state']}: {process['reasons'][:1]}")
    return {"name": name, "process": process, "problems": problems}


def _numbers(_: str, outcome: dict[str, Any]) -> list[str]:
    if outcome["dtype"] != outcome["eager_dtype"]:
        return [f"FALSE: the output is {outcome['dtype']} where eager's is {outcome['eager_dtype']}"]
    if not outcome["difference"] <= outcome["allowed"]:
        return [
            f"FALSE: off by {outcome['difference']:.3g} from eager, where {outcome['allowed']:.3g} is allowed"
        ]
    return []


def _is_hit(case: str, outcome: dict[str, Any]) -> list[str]:
    problems = _numbers(case, outcome)
    if outcome["compilations"] or outcome["compilers"]:
        problems.append(f"{outcome['compilations']} compilations, {outcome['compilers']} compilers")
    if not outcome.get("same"):
        problems.append("the output is not the builder's")
    return problems


def _is_no_false_hit(device: str, case: str, outcome: dict[str, Any]) -> list[str]:
    problems = _numbers(case, outcome)
    if case in ALIKE_ON_A_GPU and device == "cuda":
        return problems + (["compiled anew, for nothing"] if outcome["compilations"] else [])
    if not outcome["compilations"]:
        problems.append(f"FALSE HIT: nothing was compiled under {outcome['value']}")
    return problems


def table(result: dict[str, Any]) -> str:
    """Return the result as text: one line for each program in each process, then the failures."""
    lines = [f"torch {result['torch']}, Python {result['python']}, {result['gpu'] or result['machine']}"]
    for row in result["rows"]:
        lines.append(f"{row['name']}: {row['process']['state']}")
        for case, outcome in row["process"]["cases"].items():
            lines.append(
                f"  {case:30} {outcome['value']:9} {outcome['compilations']:3} compilations, "
                f"{outcome['hits']} hits, "
                f"output {outcome['dtype']:9} off by {outcome['difference']:.1e}, {outcome['seconds']:.1f} s"
            )
    lines += [f"NOT SO: {problem}" for problem in result["problems"]] or ["All as it must be."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
