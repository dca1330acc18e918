"""What this start came to: the process's own records and what its sessions restored, as one `Report`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from ..hooks import counters
from ..hooks.bypassed import explain_bypass
from ..wire.compare import Difference, differences, explaining, nearness
from ..wire.factors import Facts
from .judge import (
    KeyDifference,
    Report,
    RevisionUse,
    State,
    by_kind,
    by_revision,
    judge,
    key_differences,
    uses,
)

if TYPE_CHECKING:
    from ..node.installed import InstalledRevision, RestoreResult
    from ..session.process import Process


def account(
    process: Process, results: Sequence[RestoreResult], told: Iterable[str], canary: Collection[str]
) -> Report:
    """Makes the `outcome.judge.Report` of this process. ``results``: of all sessions. ``told``: what the
    sessions say of themselves; ``canary``: what the canary said."""
    observed = process.observer.snapshot() if process.observer else counters.Observation()
    installed = [entry for result in results for entry in result.installed]
    # What PyTorch looked for and did not find was compiled here, also where an entry holds the same key.
    used_keys = process.used_keys() - set(process.components.missed)
    used = uses(installed, process.used_paths(), used_keys, process.models)
    state = judge(observed, used)
    retraced = observed.counters.get("aot_autograd.autograd_cache_miss", 0)
    explained = state in ("inert", "partial") or retraced
    here: Facts = process.here() if explained or state == "miss" else {}
    differing = _nearest(here, installed) if explained else ()
    seconds = {**process.seconds, "hooks": process.hook_seconds()}
    for result in results:
        for step, spent in result.seconds.items():
            seconds[step] = seconds.get(step, 0.0) + spent
    saved = _saved(installed, used, seconds)
    compiled = state in ("inert", "partial")
    in_keys = key_differences(dict(process.components.missed), installed) if compiled else ()
    distrusted = [entry for result in results for entry in result.distrusted]
    wrong = by_revision("inert", distrusted, uses(distrusted, set(), set()), None)
    own = sum(result.own.files for result in results if result.own is not None)
    return Report(
        state=state if not distrusted else "inert",
        reasons=(
            *_reasons(process, state, observed, told, canary, differing, in_keys, own),
            *process.explain([entry.manifest.fingerprint for entry in installed]),
        ),
        observed=observed,
        revisions=(*by_revision(state, installed, used, saved, process.models), *wrong),
        rejected=tuple(one for result in results for one in result.rejected),
        differences=differing,
        facts=here if differing or state == "miss" else {},
        bytes_moved=sum(result.moved for result in results),
        seconds={step: round(spent, 4) for step, spent in seconds.items()},
        saved=saved,
        kinds=by_kind(observed, seconds["compile"]),
        key_differences=in_keys,
        distrusted=tuple(str(entry.revision) for entry in distrusted),
    )


def _reasons(
    process: Process,
    state: State,
    observed: counters.Observation,
    told: Iterable[str],
    canary: Collection[str],
    differing: Sequence[Difference],
    in_keys: Sequence[KeyDifference],
    own: int,
) -> Iterable[str]:
    """``own``: how many files of the node's own results were installed."""
    if process.compiled_before:
        yield f"{process.compiled_before} graphs were compiled before attach: attach earlier"
    yield from canary
    yield from told
    if state == "unused" and own:
        yield f"{own} files were installed that an earlier start of this node compiled"
    off = process.switched_off()
    if off and state in ("inert", "partial"):
        yield f"PyTorch's caches are switched off in this process ({off}): nothing restored is looked at"
        differing, in_keys = (), ()
    yield from map(explain_bypass, observed.bypassed)
    yield from (difference.advice for difference in differing)
    for difference in in_keys[:3]:
        yield f"PyTorch's key differs from the nearest installed one: {difference}"
    if state == "inert" and not (off or differing or in_keys or observed.bypassed or canary):
        yield "PyTorch looked for other keys than the installed ones: compare with cachesvc explain"
    if observed.missing:
        yield "not counted in this torch: " + ", ".join(observed.missing)


def _nearest(here: Facts, installed: Sequence[InstalledRevision]) -> tuple[Difference, ...]:
    """Between this process, now that torch is loaded and something was compiled, and the nearest entry
    that was installed: what can be why its files were not used, most important first."""
    found = [
        explaining(differences(here, entry.manifest.facts, entry.manifest.scopes)) for entry in installed
    ]
    return min(found, key=nearness, default=())


def _saved(
    installed: Sequence[InstalledRevision], revisions: Sequence[RevisionUse], seconds: dict[str, float]
) -> float | None:
    built = [
        entry.manifest.measured["first_call"]
        for entry, use in zip(installed, revisions, strict=True)
        if use.used and "first_call" in entry.manifest.measured
    ]
    return round(sum(built) - seconds["compile"] - seconds["wait"], 3) if built else None
