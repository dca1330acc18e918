"""Makes one `Report` of the records of a process and of what its sessions restored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from ..hooks import counters
from ..hooks.bypassed import explain_bypass
from ..own_results.install import keys_of_own
from ..wire.compare import Difference, differences, explanatory_differences, nearness
from ..wire.factors import Facts
from ..wire.text import count_text
from .judge import (
    ONLY_KERNELS,
    OTHER_KEYS,
    SAME_KEYS,
    TRACED_AGAIN,
    Compared,
    KeyDifference,
    Report,
    RevisionUse,
    State,
    judge,
    judge_revisions,
    key_differences,
    uses,
    with_reason,
)

if TYPE_CHECKING:
    from ..node.installed import InstalledRevision, RestoreResult
    from ..process.process import Process


def make_report(
    process: Process,
    results: Sequence[RestoreResult],
    ends: Iterable[str],
    canary: Collection[str],
    failed: bool = False,
    unattached: str = "",
) -> Report:
    """Return the `outcome.judge.Report` of a process.

    ``results``: the results of all sessions. ``ends``: lines that say how each session's restore ended.
    ``canary``: the lines of the canary. ``failed``: whether the restore of a session failed.
    """
    observed = process.output.observer.snapshot() if process.output.observer else counters.Observation()
    installed = [entry for result in results for entry in result.installed]
    # PyTorch compiled what it looked up and did not find, also where an entry has the same key.
    used_keys = process.all_kinds.found_keys() - set(process.output.components.missed)
    used_keys |= keys_of_own(process, installed)
    used = uses(installed, process.all_kinds.used_paths(), used_keys, process.output.models)
    state = judge(observed, used, failed)
    retraced = observed.torch.counters.get("aot_autograd.autograd_cache_miss", 0)
    explained = state in ("inert", "partial") or retraced
    missed = state == "miss" and not observed.clean
    here: Facts = process.output.here() if explained or missed else {}
    again = retraced if state == "hit" else 0
    aside = _aside(process, installed) if state in ("inert", "partial") or again else ()
    # What kept PyTorch from the installed files is the cause, and no difference of theirs.
    differing = _nearest(here, installed) if explained and not aside else ()
    seconds = {**process.output.seconds, "hooks": process.output.hook_seconds()}
    for result in results:
        for step, spent in result.seconds.items():
            seconds[step] = seconds.get(step, 0.0) + spent
    saved = _saved(installed, used, seconds)
    compiled = state in ("inert", "partial")
    in_keys = key_differences(dict(process.output.components.missed), installed) if compiled or again else ()
    distrusted = [entry for result in results for entry in result.unusable.distrusted]
    unusable = [entry for result in results for entry in result.unusable.all()]
    wrong = judge_revisions("inert", unusable, uses(unusable, set(), set()), None)
    before = process.output.compiled_before
    early = f"{count_text(before, 'graph')} compiled before attach: attach earlier" if before else ""
    own = sum(result.own.files for result in results if result.own is not None)
    of_kinds = tuple(process.all_kinds.explain([entry.manifest.fingerprint for entry in installed]))
    # A registry withholds what several hosts found inert: nothing is known of files that were not looked at.
    of_revisions: State = "unused" if aside and state == "inert" else state
    same = any(key in entry.keys for entry in installed for key in process.output.components.missed)
    reasons = _reasons(state, observed, ends, canary, aside, differing, in_keys, own, of_kinds, again, same)
    return Report(
        state=state if not distrusted else "inert",
        reasons=with_reason(state, filter(None, (unattached or early, *reasons))),
        observed=observed,
        revisions=(*judge_revisions(of_revisions, installed, used, saved, process.output.models), *wrong),
        compared=Compared(
            rejected=tuple(one for result in results for one in result.rejected),
            differences=differing,
            facts=here if differing or missed else {},
            key_differences=in_keys,
        ),
        bytes_moved=sum(result.moved for result in results),
        seconds={step: round(spent, 4) for step, spent in seconds.items()},
        saved=saved,
        kinds=dict(process.output.work_by_kind(observed)),
        distrusted=tuple(str(entry.revision) for entry in distrusted),
    )


def _reasons(
    state: State,
    observed: counters.Observation,
    ends: Iterable[str],
    canary: Collection[str],
    aside: Sequence[str],
    differing: Sequence[Difference],
    in_keys: Sequence[KeyDifference],
    own: int,
    of_kinds: Sequence[str],
    again: int,
    same: bool,
) -> Iterable[str]:
    """Yield why the outcome is no hit, or a slow one, the most important reason first.

    ``own``: how many files of the node's own results were installed. ``of_kinds``: the reasons that kinds
    have. ``aside``: what kept PyTorch from the installed files, whatever their keys are; then no difference
    of keys is a reason. ``again``: graphs that a hit traced although their code was restored. ``same``:
    whether PyTorch compiled for a key that is installed.
    """
    yield from canary
    yield from ends
    if own and observed.clean and state in ("unused", "miss"):
        yield f"{own} files were installed that an earlier start of this node compiled"
    yield from aside
    if aside:
        in_keys = ()
    only_tuned = state == "partial" and not observed.compilations
    if only_tuned:
        yield from of_kinds
    bypasses = tuple(map(explain_bypass, observed.torch.bypassed))
    # A graph that was looked up and missed was compiled for its key, also where its trace is not cached.
    missed = bool(observed.torch.counters.get("inductor.fxgraph_cache_miss"))
    if not missed:
        yield from bypasses
    yield from (difference.advice for difference in differing)
    for difference in in_keys[:3]:
        yield f"PyTorch's key differs from the nearest installed one: {difference}"
    if missed:
        yield from bypasses
    if not only_tuned:
        yield from of_kinds
    if again:
        yield f"{count_text(again, 'graph')} traced again in this start: {TRACED_AGAIN}"
    known = aside or differing or in_keys or observed.torch.bypassed or canary or of_kinds
    if state in ("inert", "partial") and not known:
        only_kernels = observed.torch.cpp_builds and not observed.torch.graphs_compiled
        yield ONLY_KERNELS if only_kernels else SAME_KEYS if same else OTHER_KEYS
    if observed.missing:
        yield "not counted in this torch: " + ", ".join(observed.missing)


def _aside(process: Process, installed: Sequence[InstalledRevision]) -> tuple[str, ...]:
    """Return what kept PyTorch from the installed files, whatever their keys are, the first cause first."""
    off = process.output.switched_off()
    off = off and f"PyTorch's caches are switched off in this process ({off}): nothing restored is looked at"
    return tuple(filter(None, (off, process.output.elsewhere(), *process.output.lost(installed))))


def _nearest(here: Facts, installed: Sequence[InstalledRevision]) -> tuple[Difference, ...]:
    """Return the differences between this process and the nearest installed entry that can be the reason why
    the entry's files were not used, the most important first.

    ``here``: the facts of this process after a compile, so that torch is loaded.
    """
    by_entry = [
        explanatory_differences(differences(here, entry.manifest.facts, entry.manifest.scopes))
        for entry in installed
    ]
    return min(by_entry, key=nearness, default=())


def _saved(
    installed: Sequence[InstalledRevision], revisions: Sequence[RevisionUse], seconds: dict[str, float]
) -> float | None:
    """Return the seconds of the builders' first calls less those spent here; ``None`` if not measured."""
    first_calls = [
        entry.manifest.measured["first_call"]
        for entry, use in zip(installed, revisions, strict=True)
        if use.used and "first_call" in entry.manifest.measured
    ]
    return round(sum(first_calls) - seconds["compile"] - seconds["wait"], 3) if first_calls else None
