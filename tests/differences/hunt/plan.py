"""Write the modules of cases for the torch that is installed: ``plan OUT.json [options]``.

Each case makes two rows: the builder alone has the fact, and the service alone has it. A few rows of each
group are planted holes: there the restored run has the builder's facts, and the judge has to find a false
hit.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import random
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .case import Case

DIRECTIONS = ("builder", "service")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--groups", default="")
    parser.add_argument("--only", default="", help="a regular expression for 'group: name'")
    parser.add_argument("--limit", type=int, default=0, help="so many cases of each group")
    parser.add_argument("--planted", type=int, default=3, help="so many planted holes of each group")
    parser.add_argument("--part", default="0/1", help="I/N: every Nth case, from the Ith")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = list(chosen(options))
    rows = write(cases, options.folder / "cases", options.planted)
    import torch

    result = {"torch": torch.__version__, "cases": len(cases), "rows": rows}
    (options.folder / "plan.json").write_text(json.dumps(result))


def chosen(options: argparse.Namespace) -> Iterable[Case]:
    """Yield the cases of the groups, of each group at most the limit, spread by the seed."""
    from .groups import GROUPS

    wanted = options.groups.split(",") if options.groups else []
    if unknown := [one for one in wanted if not any(name.startswith(one) for name in GROUPS)]:
        raise SystemExit(f"error: no group begins with {unknown[0]!r}: {', '.join(GROUPS)}")
    index, parts = map(int, options.part.split("/"))
    for name, make in GROUPS.items():
        if wanted and not any(name.startswith(one) for one in wanted):
            continue
        rng = random.Random(f"{options.seed} {name}")
        cases = [case for case in make(rng) if re.search(options.only, f"{case.group}: {case.name}")]
        cases = [case for case in cases if case.saved is None or _can_be_saved(case.saved)]
        if options.limit and len(cases) > options.limit:
            cases = rng.sample(cases, options.limit)
        yield from cases[index::parts]


def write(cases: Sequence[Case], folder: Path, planted: int) -> list[dict[str, Any]]:
    """Write a module for each row; return the rows."""
    import torch

    folder.mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    holes = _with_holes(cases, planted)
    for number, case in enumerate(cases):
        for direction in DIRECTIONS:
            rows.append(_row(case, direction, len(rows)))
            _write_module(case, folder, len(rows) - 1, torch)
        if number in holes:
            rows.append(_row(case, "service", len(rows), planted=True))
            _write_module(case, folder, len(rows) - 1, torch)
    return rows


def _with_holes(cases: Sequence[Case], planted: int) -> set[int]:
    """Return the numbers of the cases that get a planted hole too: so many of each group, far apart."""
    groups: dict[str, list[int]] = {}
    for number, case in enumerate(cases):
        groups.setdefault(case.group, []).append(number)
    return {members[len(members) * n // planted] for members in groups.values() for n in range(planted)}


def _row(case: Case, direction: str, number: int, planted: bool = False) -> dict[str, Any]:
    return {
        "group": case.group,
        "name": case.name,
        "direction": direction,
        "module": f"hunt_{number:05d}",
        "variables": case.variables,
        "flags": case.flags,
        "lowered": case.lowered,
        "same_process": case.same_process,
        "judged_by_compile": case.judged_by_compile,
        "planted": planted,
    }


def _can_be_saved(value: Any) -> bool:
    """Return whether a sample of an operator's arguments can be read again: one of them holds a module."""
    import torch

    try:
        torch.save(value, io.BytesIO())
    except (AttributeError, TypeError, pickle.PicklingError):
        return False
    return True


def _write_module(case: Case, folder: Path, number: int, torch: Any) -> None:
    name = f"hunt_{number:05d}"
    (folder / f"{name}.py").write_text(case.text(number + 7).replace("ROW", name))
    if case.saved is not None:
        torch.save(case.saved, folder / f"{name}.pt")
    for path, text in case.files.items():
        place = folder / path.replace("ROW", name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text.replace("ROW", name))


if __name__ == "__main__":
    main()
