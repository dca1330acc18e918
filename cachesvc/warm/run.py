"""The straight line of `warm`, per job, and the run over all of them.

    eager -> (skip what the registry has; wait, if another run compiles it) -> compile
    -> finalise, if something was tuned -> capture
    -> replays from the bundle alone, until one does nothing -> trim to what a replay used
    -> one more replay of the trimmed bundle, which is the verdict -> seal -> publish, or write

Interim bundles are signed by a key that lives as long as the run; the real key signs only what has
its verdict.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import cachesvc_client
from cachesvc_client import kinds
from cachesvc_client.bundle.file import SUFFIX
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey, TrustedKey
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.publication.publish_bundle import publish_bundle
from cachesvc_client.wire import codec
from cachesvc_client.wire.compare import INERT
from cachesvc_client.wire.errors import CacheSvcError, ClaimLost, NotFound
from cachesvc_client.wire.key_components import KeyFacts
from cachesvc_client.wire.names import Lane, Name
from cachesvc_client.wire.protocol import CommitAnswer, ResolveRequest
from cachesvc_client.wire.records import Manifest, Workload

from . import judge, turns
from .fresh import Cancelled, Launcher
from .plan import Job
from .results import Captured, Numbers, Outcome, PhaseResult, Share, Verdict
from .worker import Order

if TYPE_CHECKING:
    from cachesvc_client.claims.claim import Claim
    from cachesvc_client.http.registry import Remote

MAX_REPLAYS = 8
"""Replays until the cache must have settled; the verdict's is one more."""

TURNS = 3
"""How often a run that was taken over tries under a new claim; then the head alone decides."""

MEASURED = ("compile", "first_call", "steady", "eager_first", "eager_steady", "restored_first")
"""What a manifest's ``measured`` holds, by the names of `Numbers`."""

Tell = Callable[[Job, str], None]
"""(job, what it is doing now): progress."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Where entries are looked up and published. ``trusted`` checks what it answers; ``token`` and
    ``remote.url`` are handed to the replays of ``check``."""

    remote: Remote
    trusted: tuple[TrustedKey, ...]
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class WarmContext:
    """What a run works with. ``key`` signs what is published or written; ``None`` in a check. ``out``:
    the folder for bundle files instead of the registry."""

    name: Name
    launcher: Launcher
    tell: Tell
    registry: Registry | None = None
    key: SigningKey | None = None
    lane: Lane | None = None
    out: Path | None = None
    force: bool = False
    check: bool = False
    scratch: Path | None = None
    interim: SigningKey = field(default_factory=SigningKey.generate)
    provenance: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _State:
    """One job while it runs."""

    job: Job
    means: WarmContext
    folder: Path
    eager: PhaseResult
    workload: Workload
    compiled: PhaseResult | None = None
    files: tuple[Captured, ...] = ()
    stage: Path = Path()
    replays: int = 0
    processes: int = 0
    finalised: bool = False
    keys: KeyFacts | None = None
    claim: Claim | None = None
    notes: list[str] = field(default_factory=list)


def run(jobs: Sequence[Job], means: WarmContext, workers: int = 1) -> list[Outcome]:
    """An outcome for every job, in their order; one job's failure does not lose the others.

    On KeyboardInterrupt every process that was started is ended, nothing more is published, and what is
    not done is ``cancelled``; it is not raised again. Errors of a job are in its outcome.
    """
    outcomes: dict[int, Outcome] = {}
    with ThreadPoolExecutor(max(1, workers)) as pool:
        futures = {index: pool.submit(warm, job, means) for index, job in enumerate(jobs)}
        try:
            for index, future in futures.items():
                outcomes[index] = future.result()
        except KeyboardInterrupt:
            means.launcher.cancel()
            pool.shutdown(cancel_futures=True)
    for index, job in enumerate(jobs):
        future = futures[index]
        if index not in outcomes:
            done = future.done() and not future.cancelled()
            outcomes[index] = future.result() if done else Outcome(str(job.target), "cancelled")
    return [outcomes[index] for index in range(len(jobs))]


def warm(job: Job, means: WarmContext) -> Outcome:
    """One job, from the eager run to the publication. Raises nothing that belongs to the job."""
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="cachesvc-warm-", dir=means.scratch) as folder:
            outcome = _warm(job, means, Path(folder))
    except Cancelled:
        outcome = Outcome(str(job.target), "cancelled", ("interrupted",))
    except CacheSvcError as error:
        outcome = Outcome(str(job.target), "failed", (str(error),), error_status=error.exit_status)
    except OSError as error:
        outcome = Outcome(str(job.target), "failed", (f"{type(error).__name__}: {error}",), error_status=6)
    except Exception as error:  # noqa: BLE001 - one job's failure does not lose the others
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        outcome = Outcome(str(job.target), "failed", (text,), trace=traceback.format_exc(), error_status=1)
    outcome = replace(outcome, seconds=time.monotonic() - begin)
    means.tell(job, outcome.status)
    return outcome


def _warm(job: Job, means: WarmContext, folder: Path) -> Outcome:
    means.tell(job, "eager")
    eager = means.launcher.run(Order("eager", job), folder / "eager", {})
    if eager.error:
        status = eager.error_status
        return Outcome(str(job.target), "failed", (eager.error,), trace=eager.trace, error_status=status)
    model = eager.model
    workload = job.workload(
        model=model.digest if model else None,
        script=eager.script,
        inputs=model.inputs if model else {},
        dtype=model.dtype if model else "",
    )
    state = _State(job, means, folder, eager, workload)
    if means.registry and (means.check or not means.force):
        means.tell(job, "looking up")
        found, why = _published(state)
        if means.check:
            return _check(state, found, why)
        return _fresh(state, found) if found else _build_in_turn(state)
    return _build(state)


# Look-ups -------------------------------------------------------------------------------------


def _published(state: _State) -> tuple[Manifest | None, str]:
    """The head that the registry has for this target, workload and environment, checked; or why not."""
    from cachesvc_client.bundle.check import ExpectedStatement, check_envelope

    means, name = state.means, state.means.name
    assert means.registry is not None
    request = ResolveRequest(
        namespace=name.namespace,
        name=name.name,
        fingerprint=state.eager.fingerprint,
        tags=(name.tag,),
        lane=means.lane,
        model=state.workload.model,
    )
    wanted = ExpectedStatement(name.namespace, name.name, (name.tag,), means.lane)
    try:
        answer = means.registry.remote.resolve(request)
    except NotFound as error:
        return None, error.message
    other = False
    for revision in answer.revisions:
        envelope = revision.envelope.encode()
        verified = check_envelope(envelope, trusted=means.registry.trusted, expected=wanted, now=time.time())
        manifest = verified.manifest
        if manifest.statement.target != state.job.target:
            continue
        if manifest.workload.key == state.workload.key:
            return manifest, ""
        other = True
    if other:
        return None, f"{name} has this target, but of another model, inputs or options"
    for rejected in answer.rejected:
        if rejected.target == state.job.target:
            first = rejected.differences[0]
            if first.factor == INERT:
                return None, f"{name} has this target, but services report it useless: {first}"
            return None, f"{name} has this target, but for another environment: {first}"
    return None, f"{name} does not have this target"


def _fresh(state: _State, found: Manifest, why: str = "published already") -> Outcome:
    return Outcome(
        str(state.job.target),
        "fresh",
        (f"{why} for this environment and workload (--force compiles again)",),
        numbers=codec.build(
            Numbers, {name: found.measured[name] for name in MEASURED if name in found.measured}
        ),
        files_after=len(found.files),
        bytes_after=sum(file.size for file in found.files),
        pack_bytes=found.pack.size,
    )


def _check(state: _State, found: Manifest | None, why: str) -> Outcome:
    """The CI gate: what the registry has, restored as a service restores it, must do nothing."""
    job, means = state.job, state.means
    if found is None:
        return Outcome(str(job.target), "cold", (why,))
    assert means.registry is not None
    means.tell(job, "replay")
    extra = {
        "CACHESVC_URL": means.registry.remote.url,
        "CACHESVC_TRUSTED_KEYS": ",".join(means.registry.trusted),
        "CACHESVC_STRICT": "1",
        "CACHESVC_REPORT": "0",  # a check is no start of a service
    }
    extra |= {"CACHESVC_TOKEN": means.registry.token} if means.registry.token else {}
    extra |= {"CACHESVC_LANE": means.lane} if means.lane else {}
    order = Order("replay", job, name=str(means.name))
    replay = means.launcher.run(order, state.folder / "check", extra)
    reasons = judge.unsettled(replay)
    return Outcome(
        str(job.target),
        "cold" if reasons else "warm",
        reasons,
        numbers=judge.numbers(state.eager.times, {}, replay.times),
        observed=replay.observed,
        files_after=len(found.files),
        bytes_after=sum(file.size for file in found.files),
        pack_bytes=found.pack.size,
        replays=1,
        trace=replay.trace,
    )


# Building -------------------------------------------------------------------------------------


def _build_in_turn(state: _State) -> Outcome:
    """Unless another run does: then what that one publishes is as good."""
    found = _take_turn(state)
    if found is not None:
        return _fresh(state, found, "published by another run meanwhile")
    try:
        return _build(state)
    finally:
        if state.claim is not None:
            state.claim.release()


def _take_turn(state: _State) -> Manifest | None:
    """What another run has published; or this one has the claim now, if it could be had."""
    means = state.means
    assert means.registry is not None
    of = turns.subject(means.name, means.lane, state.job.target, state.eager.fingerprint, state.workload)
    taken = turns.take(
        means.registry.remote,
        of,
        lambda: _published(state)[0],
        lambda step: means.tell(state.job, step),
        lambda: means.launcher.cancelled,
    )
    if means.launcher.cancelled:
        if taken.claim is not None:
            taken.claim.release()
        raise Cancelled
    state.claim = taken.claim
    if taken.why:
        state.notes.append(f"compiled without a claim: {taken.why}")
    return taken.result


def _build(state: _State) -> Outcome:
    compiled = _compile(state)
    if compiled.error:
        return _outcome(state, "failed", (compiled.error,), trace=compiled.trace)
    if inexact := judge.inexact(compiled):
        return _outcome(state, "failed", inexact)
    if uncached := judge.uncached(compiled):
        return _outcome(state, "failed", uncached)  # and no number of fresh processes changes that
    if not any(kinds.BY_NAME[file.kind].decides_fit for file in state.files):
        return _outcome(state, "failed", ("nothing was compiled, so there is nothing to publish",))
    replay, reasons = _settle(state)
    if reasons:
        settled = f"not settled after {state.replays} fresh processes: "
        text = "; ".join(reasons)
        return _outcome(state, "failed", (text if replay.error else settled + text,), replay, replay.trace)
    verdict, final = _trim(state, replay)
    if not verdict.warm:
        return _outcome(state, "failed", verdict.reasons, final, final.trace)
    return _deliver(state, final)


def _compile(state: _State) -> PhaseResult:
    """The cold compile, and a second one over its tuning results if there are any."""
    state.means.tell(state.job, "compile")
    folder = state.folder / "compile"
    state.stage = folder / "stage"
    compiled = _phase(state, "compile", folder, keep=True)
    state.compiled = compiled
    state.files, state.keys = compiled.captured, compiled.keys
    if not compiled.error and judge.tuned(compiled):
        state.means.tell(state.job, "finalise")
        shutil.rmtree(state.stage, ignore_errors=True)
        finalised = _phase(state, "finalise", folder)
        if finalised.error:
            return finalised
        state.files, state.keys, state.finalised = finalised.captured, finalised.keys, True
    shutil.rmtree(folder / "store", ignore_errors=True)
    return compiled


def _settle(state: _State) -> tuple[PhaseResult, tuple[str, ...]]:
    """Replays until one has nothing to do. Each starts from what the one before it ended with."""
    while True:
        state.means.tell(state.job, f"replay {state.replays + 1}")
        stage = state.folder / f"stage-{state.replays}"
        replay = _replay(state, state.files, stage)
        reasons = judge.unsettled(replay)
        if not reasons or replay.error or state.replays == MAX_REPLAYS:
            return replay, reasons
        shutil.rmtree(state.stage, ignore_errors=True)
        state.files, state.stage = replay.captured, stage


def _trim(state: _State, replay: PhaseResult) -> tuple[Verdict, PhaseResult]:
    """Leaves out what no replay used. If a fresh process then does work after all, less is left out, and at
    last nothing: then the settled replay is the verdict."""
    assert state.compiled is not None
    whole = judge.verdict(state.compiled, replay)
    if not replay.read:
        state.notes.append("no read of a file was seen, so nothing was left out")
        return whole, replay
    for files in _trimmed(state.files, {*replay.read, *replay.looked_at}):
        state.means.tell(state.job, "verdict")
        final = _replay(state, files, None)
        verdict = judge.verdict(state.compiled, final)
        if verdict.warm:
            state.files = files
            return verdict, final
        if not whole.warm:
            return verdict, final
        state.notes.append(f"more than {len(files)} files are kept: with these alone, {verdict.reasons[0]}")
    return whole, replay


def _trimmed(files: tuple[Captured, ...], used: set[str]) -> list[tuple[Captured, ...]]:
    """Selections to try, smallest first: what was used; and that with all that lies beside it, since a file
    that is only asked for is seen by no watch."""
    folders = {name.rpartition("/")[0] for name in used}
    lean = tuple(file for file in files if file.name in used)
    beside = tuple(file for file in files if file.name.rpartition("/")[0] in folders)
    return [made for made in dict.fromkeys((lean, beside)) if 0 < len(made) < len(files)]


def _replay(state: _State, files: Iterable[Captured], stage: Path | None) -> PhaseResult:
    """A fresh process with a bundle of ``files`` and nothing else of the builder's."""
    state.replays += 1
    folder = state.folder / f"replay-{state.replays}"
    folder.mkdir()
    bundle = folder / f"interim{SUFFIX}"
    build_bundle(_sources(state, files), _draft(state, {}), state.means.interim, bundle)
    try:
        return _phase(state, "replay", folder, bundle=bundle, stage=stage)
    finally:
        bundle.unlink()


def _phase(
    state: _State,
    phase: str,
    folder: Path,
    *,
    bundle: Path | None = None,
    stage: Path | None = None,
    keep: bool = False,
) -> PhaseResult:
    stage = stage or (None if phase == "replay" else state.stage)
    order = Order(
        phase,
        state.job,
        reference=str(state.folder / "reference.pt"),
        bundle=str(bundle or ""),
        stage=str(stage or ""),
    )
    extra = {"CACHESVC_TRUSTED_KEYS": str(state.means.interim.public), "CACHESVC_STRICT": "1"}
    extra["CACHESVC_KEEP_OWN"] = "0"
    extra |= {"CACHESVC_LANE": state.means.lane} if state.means.lane else {}
    return state.means.launcher.run(order, folder, extra, keep=keep)


def _deliver(state: _State, final: PhaseResult) -> Outcome:
    """Seals with the real key, and publishes or writes. An entry is whole or not there."""
    means, job = state.means, state.job
    if final.beside:
        state.notes.append(
            f"a fresh process compiled {len(final.beside)} kernels of libraries (cuDNN's attention is one): "
            "they hold the working directory, set cwd to the service's"
        )
    outcome = _outcome(state, "warm", (), final)
    assert means.key is not None
    figures = {name: getattr(outcome.numbers, name) for name in MEASURED}
    measured = {name: seconds for name, seconds in figures.items() if seconds is not None}
    if means.launcher.cancelled:
        raise Cancelled
    folder = means.out or state.folder
    path = folder / (f"{means.name.name}-{job.target}".replace("/", "-") + SUFFIX)
    manifest = build_bundle(_sources(state, state.files), _draft(state, measured), means.key, path)
    outcome = replace(outcome, pack_bytes=manifest.pack.size)
    if means.out:
        return replace(outcome, bundle=str(path))
    means.tell(job, "publish")
    answer = _publish(state, path)
    if isinstance(answer, Manifest):
        return _fresh(state, answer, "this run was silent for too long, and another one has published")
    return replace(outcome, revision=str(answer.revision))


def _publish(state: _State, path: Path) -> CommitAnswer | Manifest:
    """What was published; by another run, if that one has taken over. What is proven already is published all
    the same where that one gave up."""
    means = state.means
    assert means.registry is not None and means.key is not None
    for _ in range(TURNS):
        claim = state.claim
        try:
            shown = claim.commit_ref if claim is not None else None
            answer = publish_bundle(means.registry.remote, path, means.key, claim=shown)
        except ClaimLost as error:
            means.tell(state.job, str(error))
            assert claim is not None
            claim.published()
            found = _take_turn(state)
            if found is not None:
                return found
            continue
        if claim is not None:
            claim.published()
        return answer
    return publish_bundle(means.registry.remote, path, means.key)


def _draft(state: _State, measured: Mapping[str, float]) -> Draft:
    compiled = state.compiled
    assert compiled is not None
    return Draft(
        name=state.means.name,
        target=state.job.target,
        fingerprint=compiled.fingerprint,
        workload=state.workload,
        scopes=compiled.scopes,
        lane=state.means.lane,
        measured=measured,
        provenance={"tool": f"cachesvc warm {cachesvc_client.__version__}", **state.means.provenance},
        keys=state.keys,
        asked=compiled.asked,
    )


def _sources(state: _State, files: Iterable[Captured]) -> list[SourceFile]:
    return [
        SourceFile(file.kind, file.path, state.stage / file.kind / file.path, file.mode, file.ranks)
        for file in files
    ]


def _outcome(
    state: _State,
    status: str,
    reasons: tuple[str, ...],
    replay: PhaseResult | None = None,
    trace: str = "",
) -> Outcome:
    compiled = state.compiled or PhaseResult("compile")
    before = compiled.captured
    # Why eager could not be compared is in the table already; here, why the builder could not be.
    uncompared = [
        f"restored output of inputs {name!r}: {item.note}"
        for name, item in (replay.compared if replay else {}).items()
        if item.note and not compiled.compared.get(name, item).note
    ]
    return Outcome(
        target=str(state.job.target),
        status=status,
        reasons=reasons,
        numbers=judge.numbers(state.eager.times, compiled.times, replay.times if replay else {}),
        files_before=len(before),
        bytes_before=sum(file.size for file in before),
        files_after=len(state.files),
        bytes_after=sum(file.size for file in state.files),
        kinds=_shares(before, state.files, replay.emitted if replay else ()),
        graph_breaks=compiled.graph_breaks,
        recompiles=compiled.recompiles,
        compared=compiled.compared,
        observed=replay.observed if replay else None,
        replays=state.replays,
        finalised=state.finalised,
        notes=(*state.notes, *uncompared),
        trace=trace,
    )


def _shares(
    before: Iterable[Captured], after: Iterable[Captured], emitted: Iterable[str]
) -> dict[str, Share]:
    made: dict[str, Counter[str]] = defaultdict(Counter)
    for when, files in (("before", before), ("after", after)):
        for file in files:
            made[file.kind][f"files_{when}"] += 1
            made[file.kind][f"bytes_{when}"] += file.size
    for name in emitted:
        made[name.partition("/")[0]]["emitted"] += 1
    return {kind: Share(**counts) for kind, counts in sorted(made.items())}
