"""Build the entry of one target and prove it: compile, finalise, settle, trim, record, seal."""

from __future__ import annotations

import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cachesvc_client
from cachesvc_client.bundle.file import SUFFIX
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import Signer
from cachesvc_client.publication.build_bundle import Build, Draft, build_bundle
from cachesvc_client.wire.errors import Unsupported
from cachesvc_client.wire.factors import Fingerprint
from cachesvc_client.wire.manifest.key_components import KeyFacts
from cachesvc_client.wire.manifest.proof import Proof
from cachesvc_client.wire.manifest.records import Manifest, PackRecord

from . import kinds_used
from .context import TargetContext
from .verdict import judge
from .verdict.results import Outcome, Share
from .worker.other_keys import other_keys
from .worker.phase import CapturedFile, PhaseRequest, PhaseResult

MAX_REPLAYS = 8
"""Number of replays after which the cache must have settled; the verdict needs one more."""


class BuildFailed(Exception):
    """The target cannot become warm. ``reasons``: why. ``replay``: the replay that shows it, if any."""

    def __init__(self, reasons: tuple[str, ...], replay: PhaseResult | None = None, trace: str = "") -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons
        self.replay = replay
        self.trace = trace


class EntryBuild:
    """Builds the entry of one target. Call `compile`, `prove` and `seal`, in this order.

    ``files`` lie in ``stage``, as the last process that captured them left them.
    """

    def __init__(self, target: TargetContext, notes: Iterable[str] = ()) -> None:
        self.target = target
        self.notes = list(notes)
        self.compile_result = PhaseResult("compile")
        self.fingerprint: Fingerprint = {}
        """The environment that the files need, as the last process that captured them says."""
        self.files: tuple[CapturedFile, ...] = ()
        self.choices: tuple[CapturedFile, ...] = ()
        """The files of the settled entry with what the compiler chose by timing."""
        self.stage = target.folder / "compile" / "stage"
        self.keys: KeyFacts | None = None
        self.finalised = False
        self.replays = 0

    def compile(self) -> None:
        """Compile from nothing, and a second time over the tuning results if there are any.

        Raises ``BuildFailed`` if the model cannot be compiled, computes other numbers, or leaves nothing that
        an entry can hold.
        """
        self.target.show_step("compile")
        folder = self.target.folder / "compile"
        self.compile_result = self._run("compile", folder, stage=self.stage, keep=True)
        self.keys = self.compile_result.keys
        self._take(self.compile_result)
        _raise_error(self.compile_result)
        if judge.needs_finalise(self.compile_result):
            self.target.show_step("finalise")
            shutil.rmtree(self.stage, ignore_errors=True)
            finalised = self._run("finalise", folder, stage=self.stage)
            _raise_error(finalised)
            self.keys, self.finalised = finalised.keys, True
            self._take(finalised)
        shutil.rmtree(folder / "store", ignore_errors=True)
        self.notes += judge.unproven(self.compile_result, without_gpu=self.target.warm.device is not None)
        for problems in (judge.output_differences, judge.uncacheable_graphs):
            if reasons := problems(self.compile_result):
                raise BuildFailed(reasons)
        if not any(kinds_used.decides_fit(file.kind) for file in self.files):
            raise BuildFailed(("nothing was compiled, so there is nothing to publish",))

    def _take(self, result: PhaseResult) -> None:
        """Go on with what a process captured."""
        self.files, self.fingerprint = result.capture, result.fingerprint
        if result.beyond_level:
            level = self.target.job.level
            self.notes.append(
                f"not known to be built for {level}, so it is for this CPU: {result.beyond_level}"
            )

    def prove(self) -> PhaseResult:
        """Settle and trim; return the replay of the files that are left, which did no work.

        Where the spec asks for it, record what Dynamo traces too, and return the replay that traced nothing.
        Raises ``BuildFailed``.
        """
        replay = self._trim(self._settle())
        if self.target.warm.device is not None:
            return replay
        tracing = self.target.job.spec.tracing
        torch = str(self.compile_result.fingerprint.get("torch", ""))
        if tracing == "auto" and not kinds_used.can_record(torch):
            self.notes.append(f"services of this entry trace: nothing is recorded on torch {torch}")
        elif tracing != "always":
            return self._record(replay)
        return replay

    def seal(self, path: Path, key: Signer, measured: Mapping[str, float]) -> Manifest:
        """Write the entry into the bundle file ``path``, signed by ``key``, and return its manifest."""
        draft = self._draft(measured)
        draft = replace(draft, build=replace(draft.build, attest=self._attest))
        return build_bundle(self._sources(self.files), draft, key, path)

    def outcome(
        self, status: str, reasons: tuple[str, ...], replay: PhaseResult | None, trace: str = ""
    ) -> Outcome:
        """Return what came of the target so far. ``replay``: the last replay that counts."""
        compiled = self.compile_result
        before = compiled.capture
        return Outcome(
            target=str(self.target.job.label),
            status=status,
            reasons=reasons,
            numbers=judge.numbers(self.target.eager.times, compiled.times, replay.times if replay else {}),
            files_before=len(before),
            bytes_before=sum(file.size for file in before),
            files_after=len(self.files),
            bytes_after=sum(file.size for file in self.files),
            kinds=_shares(before, self.files, replay.files_emitted if replay else ()),
            graph_breaks=compiled.graph_breaks,
            recompiles=compiled.recompiles,
            compared=compiled.comparisons,
            observed=replay.observation if replay else None,
            replays=self.replays,
            finalised=self.finalised,
            notes=(*self.notes, *_uncompared(compiled, replay)),
            trace=trace,
        )

    def _settle(self) -> PhaseResult:
        """Replay until a process has nothing to do. Each starts from what the one before it ended with."""
        while True:
            self.target.show_step(f"replay {self.replays + 1}")
            stage = self.target.folder / f"stage-{self.replays}"
            replay = self._replay(self.files, stage)
            reasons = judge.remaining_work(replay)
            if not reasons:
                return replay
            reasons += other_keys(replay.keys, self.keys)
            if replay.error or self.replays == MAX_REPLAYS:
                prefix = "" if replay.error else f"not settled after {self.replays} fresh processes: "
                raise BuildFailed((prefix + "; ".join(reasons),), replay, replay.trace)
            self.target.show_step(f"replay {self.replays} did work: {'; '.join(reasons)}")
            shutil.rmtree(self.stage, ignore_errors=True)
            self.stage = stage
            self._take(replay)

    def _trim(self, settled: PhaseResult) -> PhaseResult:
        """Leave out what no replay used, and return the replay of the rest.

        If a fresh process then does work after all, less is left out, and at last nothing: then the settled
        replay counts.
        """
        self.choices = tuple(file for file in self.files if kinds_used.holds_choices(file.kind, file.path))
        whole = judge.verdict(self.compile_result, settled)
        if not settled.files_read:
            self.notes.append("no read of a file was seen, so nothing was left out")
        used = {*settled.files_read, *settled.files_required} if settled.files_read else set()
        selections = _selections(self.files, used)
        if not selections and self.target.demanding(self.files):
            selections = [self.files]
        for files in selections:
            self.target.show_step("verdict")
            replay = self._replay(files, None, variables=self.target.demanding(files))
            verdict = judge.verdict(self.compile_result, replay)
            if verdict.warm:
                self.files = files
                return replay
            if not whole.warm:
                raise BuildFailed(verdict.reasons, replay, replay.trace)
            text = f"more than {len(files)} files are kept: with these alone, {verdict.reasons[0]}"
            self.notes.append(text)
        if not whole.warm:
            raise BuildFailed(whole.reasons, settled, settled.trace)
        return settled

    def _record(self, replay: PhaseResult) -> PhaseResult:
        """Add what Dynamo made of the functions that it traced, if a fresh process then traces nothing.

        The recording looks each graph up as it was when Inductor got it. By then PyTorch has padded matrix
        products where that was faster (``pad_mm``), so the recording has the builder's timings, which a
        restored process does not need.

        Else return ``replay``, with a note that says why; where the spec allows no trace, raise
        ``BuildFailed``.
        """
        self.target.show_step("record")
        stage = self.target.folder / "recorded"
        recording = self._replay(dict.fromkeys((*self.files, *self.choices)), stage, phase="record")
        recorded = tuple(file for file in recording.capture if kinds_used.is_recorded(file.kind))
        for file in recorded:
            (self.stage / file.kind).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(stage / file.kind / file.path, self.stage / file.kind / file.path)
        shutil.rmtree(stage, ignore_errors=True)
        reasons = recording.why_traced or ("nothing was traced",)
        if recording.error:
            reasons = (f"the recording failed: {recording.error}",)
        elif recorded:
            self.target.show_step("verdict without tracing")
            proven = self._replay((*self.files, *recorded), None)
            verdict = judge.verdict(self.compile_result, proven)
            reasons = (*verdict.reasons, *judge.traces(proven), *recording.why_traced, *proven.why_traced)
            if verdict.warm and not judge.traces(proven):
                self.files = (*self.files, *recorded)
                self.notes.append("services of this entry do not trace")
                return proven
        if self.target.job.spec.tracing == "never":
            raise BuildFailed(reasons, replay)
        compiled = (f"while it was recorded it {work}" for work in judge.compiles(recording))
        self.notes.append(f"services of this entry trace: {'; '.join((*compiled, *reasons)[:3])}")
        return replay

    def _replay(
        self,
        files: Iterable[CapturedFile],
        stage: Path | None,
        phase: str = "replay",
        variables: Mapping[str, str] | None = None,
    ) -> PhaseResult:
        """Run a fresh process with a bundle of ``files`` and nothing else of the builder's."""
        self.replays += 1
        folder = self.target.folder / f"replay-{self.replays}"
        folder.mkdir()
        bundle = folder / f"interim{SUFFIX}"
        build_bundle(self._sources(files), self._draft({}), self.target.warm.sealing.interim_key, bundle)
        try:
            return self._run(phase, folder, bundle=bundle, stage=stage, variables=variables)
        finally:
            bundle.unlink()

    def _run(
        self,
        phase: str,
        folder: Path,
        *,
        bundle: Path | None = None,
        stage: Path | None = None,
        keep: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> PhaseResult:
        """Run one phase in a fresh process, with the arguments of ``PhaseRequest`` and ``Launcher.run``."""
        warm = self.target.warm
        request = PhaseRequest(
            phase,
            self.target.job,
            reference=str(self.target.folder / "reference.pt"),
            bundle=str(bundle or ""),
            stage=str(stage or ""),
            device=str(warm.device or ""),
        )
        extra = {"CACHESVC_TRUSTED_KEYS": str(warm.sealing.interim_key.public), "CACHESVC_STRICT": "1"}
        extra["CACHESVC_KEEP_OWN"] = "0"
        extra |= {"CACHESVC_LANE": warm.lane} if warm.lane else {}
        result = warm.launcher.run(request, folder, extra | dict(variables or {}), keep=keep)
        self._demand_same_model(result)
        return result

    def _demand_same_model(self, result: PhaseResult) -> None:
        """Raise ``BuildFailed`` if a process built another model than the first did: the entry would name the
        one, and have the graphs of the other."""
        eager, now = self.target.eager.model, result.model
        if eager is not None and now is not None and not result.error and now.digest != eager.digest:
            raise BuildFailed((f"the model changed while it was warmed ({result.phase}): start warm again",))

    def _draft(self, measured: Mapping[str, float]) -> Draft:
        warm = self.target.warm
        return Draft(
            name=warm.name,
            target=self.target.job.target,
            fingerprint=self.fingerprint,
            workload=self.target.workload,
            scopes=self.compile_result.scopes,
            lane=warm.lane,
            expires=None if warm.sealing.lifetime is None else int(time.time() + warm.sealing.lifetime),
            keys=self.keys,
            asked=self.compile_result.graph_requests,
            build=Build(
                measured=measured,
                remarks={"tool": f"cachesvc warm {cachesvc_client.__version__}", **warm.sealing.remarks},
                proof=self._proof(),
            ),
        )

    def _proof(self) -> Proof | None:
        """Return on what the replays show that the entry works. Raises ``BuildFailed`` where a hook that it
        needs is missing."""
        environment = self.target.warm.environment
        if environment is None:
            return None
        try:
            return environment.proof({file.kind for file in self.files})
        except Unsupported as error:
            raise BuildFailed((error.message,)) from None

    def _attest(self, pack: PackRecord) -> dict[str, Any] | None:
        """Return the statement of who built the pack."""
        warm, compiled = self.target.warm, self.compile_result
        if warm.sealing.origin is None:
            return None
        provenance = warm.sealing.origin.provenance(
            warm.name, warm.lane, self.target.job.target, self.fingerprint, compiled.scopes
        )
        return warm.sealing.origin.statement(provenance, pack)

    def _sources(self, files: Iterable[CapturedFile]) -> list[SourceFile]:
        return [
            SourceFile(file.kind, file.path, self.stage / file.kind / file.path, file.mode, file.ranks)
            for file in files
        ]


def _raise_error(result: PhaseResult) -> None:
    """Raise ``BuildFailed`` if the process could not do its phase."""
    if result.error:
        raise BuildFailed((result.error,), trace=result.trace)


def _selections(files: tuple[CapturedFile, ...], used: set[str]) -> list[tuple[CapturedFile, ...]]:
    """Return selections to try, smallest first: the files that were used; and all files of their folders,
    since no watch sees a file of which a process only asks whether it exists."""
    folders = {name.rpartition("/")[0] for name in used}
    lean = tuple(file for file in files if file.name in used)
    with_neighbours = tuple(file for file in files if file.name.rpartition("/")[0] in folders)
    distinct = dict.fromkeys((lean, with_neighbours))
    return [selection for selection in distinct if 0 < len(selection) < len(files)]


def _uncompared(compiled: PhaseResult, replay: PhaseResult | None) -> list[str]:
    """Return why restored outputs could not be compared, where compiled ones could. The table says why eager
    could not be compared."""
    return [
        f"restored output of inputs {name!r}: {item.note}"
        for name, item in (replay.comparisons if replay else {}).items()
        if item.note and not compiled.comparisons.get(name, item).note
    ]


def _shares(
    before: Iterable[CapturedFile], after: Iterable[CapturedFile], emitted: Iterable[str]
) -> dict[str, Share]:
    """Return each kind's share of the entry."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for when, files in (("before", before), ("after", after)):
        for file in files:
            counts[file.kind][f"files_{when}"] += 1
            counts[file.kind][f"bytes_{when}"] += file.size
    for name in emitted:
        counts[name.partition("/")[0]]["emitted"] += 1
    return {kind: Share(**counted) for kind, counted in sorted(counts.items())}
