"""Judge one row: what was restored, against eager and against a compile without a cache.

Verdicts on a run:

- *right*: something was reused, and the answer is eager's.
- *false hit*: the answer is neither eager's nor that of a compile without a cache.
- *pytorch*: the answer is not eager's, and a compile without a cache answers the same.
- *missed*: nothing was reused, and the answer is right.
- *not judged*: eager and a compile without a cache do not run here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .answers import difference

_NO_REASON = "not counted in this torch"
"""How a line of a report begins that is there also where everything is hit."""


def judge(
    row: Mapping[str, Any], tried: Mapping[str, Any], built: Mapping[str, Any], recorded: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a row of the report."""
    result: dict[str, Any] = {
        name: row[name] for name in ("group", "name", "direction", "module", "planted")
    } | {"runs": {}}
    if "failed" in tried or "failed" in tried.get("eager", {"failed": ""}):
        why = tried.get("failed") or tried["eager"].get("failed", "no answer")
        return {**result, "applied": False, "why": str(why)[-600:]}
    if why := built.get("failed") or built.get("eager", {}).get("failed"):
        return {**result, "applied": False, "why": f"builder: {str(why)[-600:]}"}
    eager = tried["eager"]
    result["applied"] = True
    by_compile = row.get("judged_by_compile", False)
    pair = (tried.get("without", {}), built["compiled"]) if by_compile else (eager, built["eager"])
    result["visible"] = is_unlike(*pair)
    if eager["error"] and built["eager"]["error"]:
        return {**result, "applied": False, "why": f"eager raises {eager['error']}: {eager.get('text', '')}"}
    result["recorded"] = not recorded.get("refused") if recorded else None
    result["refused"] = list(recorded.get("refused", []))[:3]
    for mode in ("frames", "traced"):
        if mode in tried:
            run = tried[mode]
            if row["planted"] and is_of_process(row):
                # No run of this process can have the builder's facts: its answer is put in the place.
                run = {**run, **built["compiled"], "loaded": 1}
            result["runs"][mode] = judge_run(run, tried, row)
    return result


def is_of_process(row: Mapping[str, Any]) -> bool:
    """Return whether the fact of a row is one of how its process was started."""
    return bool(row["variables"] or row["flags"])


def judge_run(run: Mapping[str, Any], tried: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on one run, with what was counted and why nothing was reused."""
    if "failed" in run:
        return {"verdict": "failed", "why": str(run["failed"])[-600:]}
    eager = run["eager_after"] if row.get("same_process") else tried["eager"]
    without = tried.get("without", {"failed": ""})
    if row.get("judged_by_compile") and "failed" not in without:
        eager = without
    reused = run["loaded"] + run["given"] > 0
    kept = {name: run[name] for name in ("loaded", "given", "compiled", "state")}
    reasons = [reason for reason in run["reasons"] if not reason.startswith(_NO_REASON)]
    kept["reasons"] = [*reasons, *run["frames_refused"]][:5]
    kept["silent"] = run["compiled"] > 0 and (run["state"] == "hit" or not reasons)
    why = _unlike(run, eager)
    if not why:
        return {"verdict": "right" if reused else "missed", **kept}
    if "failed" not in without and not _unlike(run, without):
        return {"verdict": "pytorch", "why": why, **kept}
    if eager["error"] and (without.get("error") or "failed" in without):
        return {"verdict": "not judged", "why": why, **kept}
    return {"verdict": "false hit" if reused else "wrong", "why": why, **kept}


def is_unlike(run: Mapping[str, Any], eager: Mapping[str, Any]) -> bool:
    """Return whether a run or eager failed, or they answer differently."""
    return "failed" in run or "failed" in eager or bool(_unlike(run, eager))


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return how two answers differ, an error being an answer; an empty text if they do not."""
    if one["error"] or other["error"]:
        if one["error"] and other["error"]:
            return ""
        return f"raises {one['error'] or 'nothing'}, expected {other['error'] or 'an answer'}"
    return difference(one["answer"], other["answer"])
