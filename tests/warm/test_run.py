"""Test the phases of a target, over processes with scripted answers: settle, trim, finalise, seal.

`test_warm` tests the answers of real processes; here are the answers that a small model on a CPU never
gives."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cachesvc.warm.build import MAX_REPLAYS
from cachesvc.warm.context import Sealing, WarmContext
from cachesvc.warm.launcher import Launcher
from cachesvc.warm.run import run
from cachesvc.warm.spec.plan import plan
from cachesvc.warm.spec.spec import parse_spec
from cachesvc.warm.verdict.results import Share
from cachesvc.warm.worker.phase import CapturedFile, ModelFacts, PhaseRequest, PhaseResult, Times
from cachesvc.warm.worker.steady import Steady
from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.pack import PackReader
from cachesvc_client.bundle.seal import PublicKey, SigningKey
from cachesvc_client.canary.tolerance import Compared
from cachesvc_client.hooks.counters import Observation, TorchWork
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.names import Name

MODEL = ModelFacts(None, {"a": {}}, "float32", "weights")
BUSY = Observation(torch=TorchWork(graphs_compiled=1), compilations=1)
TUNED = Observation(torch=TorchWork(graphs_compiled=1), compilations=1, tuning_runs=3)
EXACT = {"a": Compared(0.0, 1.0, 0.1)}


@dataclass
class Answer:
    """Is the answer of one process. ``files``: the files that it captures. ``read``: the files that a replay
    reads; ``None``: all restored files."""

    files: tuple[str, ...] = ()
    observed: Observation = field(default_factory=Observation)
    read: tuple[str, ...] | None = None
    error: str = ""
    required: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    emitted: tuple[str, ...] = ()
    compared: dict[str, Compared] = field(default_factory=lambda: dict(EXACT))
    why_traced: tuple[str, ...] = ()


class Scripted(Launcher):
    """Returns scripted answers in order. It records the phases, and the files that each replay restored."""

    def __init__(self, *answers: Answer | Callable[[frozenset[str]], Answer]) -> None:
        super().__init__({})
        self.answers = list(answers)
        self.phases: list[str] = []
        self.restored: list[frozenset[str]] = []
        self.signers: list[str] = []

    def run(self, request: PhaseRequest, folder: Path, extra, *, keep: bool = False) -> PhaseResult:
        del folder, keep
        self.phases.append(request.phase)
        if request.phase == "eager":
            return PhaseResult("eager", model=MODEL, times={"a": Times(1.0)})
        restored: frozenset[str] = frozenset()
        if request.bundle:
            manifest = verified_manifest(Path(request.bundle), extra["CACHESVC_TRUSTED_KEYS"])
            restored = frozenset(f"{file.kind}/{file.path}" for file in manifest.files)
            self.restored.append(restored)
            self.signers.append(extra["CACHESVC_TRUSTED_KEYS"])
        answer = self.answers.pop(0)
        answer = answer(restored) if callable(answer) else answer
        return PhaseResult(
            request.phase,
            error=answer.error,
            model=MODEL,
            times={"a": Times(5.0, Steady(0.1, 0.1, 0.1), Steady(0.2, 0.2, 0.2))},
            observation=answer.observed,
            comparisons=answer.compared,
            files_read=tuple(restored) if answer.read is None else answer.read,
            files_required=answer.required,
            files_added=answer.added,
            files_emitted=answer.emitted,
            capture=stage(request, answer.files),
            fingerprint={"torch": "2.13.0"},
            scopes=("host",),
            why_traced=answer.why_traced,
        )


def stage(request: PhaseRequest, names: tuple[str, ...]) -> tuple[CapturedFile, ...]:
    if not request.stage:
        return ()
    captured = []
    for name in names:
        kind, _, path = name.partition("/")
        target = Path(request.stage, kind, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{name} of {request.phase}")
        captured.append(CapturedFile(kind, path, target.stat().st_size))
    return tuple(captured)


def verified_manifest(path: Path, trusted: str) -> Manifest:
    envelope, _ = open_bundle(path)
    return check_envelope(envelope, trusted=[PublicKey(trusted)], expected=None, now=time.time()).manifest


A, B, C = "inductor/aa/a", "inductor/bb/b", "triton/cc/c"


@pytest.fixture
def warm(tmp_path):
    """Return a function that runs one job over scripted answers and returns the outcome, the launcher and the
    written manifest."""
    key = SigningKey.generate()
    out = tmp_path / "out"
    out.mkdir()

    def run_job(*answers, tracing="always"):
        launcher = Scripted(*answers)
        text = 'name = "a/b"\n[[target]]\nid = "x"\nfactory = "m:f"\ntracing = "' + tracing + '"\n'
        context = WarmContext(Name.parse("a/b"), launcher, lambda *_: None, sealing=Sealing(key), out=out)
        (outcome,) = run(plan(parse_spec(text, tmp_path / "w.toml")), context)
        assert launcher.answers == [], outcome
        paths = list(out.iterdir())
        manifest = verified_manifest(paths[0], str(key.public)) if paths else None
        assert str(key.public) not in launcher.signers
        return outcome, launcher, manifest

    return run_job


def names(manifest: Manifest | None) -> set[str]:
    assert manifest is not None
    return {f"{file.kind}/{file.path}" for file in manifest.files}


def test_a_first_replay_without_work_settles_the_target(warm):
    outcome, launcher, manifest = warm(Answer((A, B)), Answer())
    assert (outcome.status, outcome.replays) == ("warm", 1)
    assert launcher.phases == ["eager", "compile", "replay"]
    assert names(manifest) == {A, B}
    assert manifest.measured["first_call"] == 5.0
    assert str(manifest.statement.target) == "x/default"


def test_unread_files_are_left_out_and_the_rest_is_proven_again(warm):
    outcome, launcher, manifest = warm(Answer((A, B, C)), Answer(read=(A, C)), Answer())
    assert (outcome.status, outcome.files_before, outcome.files_after) == ("warm", 3, 2)
    assert launcher.restored == [{A, B, C}, {A, C}]
    assert names(manifest) == {A, C}


def test_all_files_stay_if_the_trim_makes_a_difference(warm):
    outcome, _, manifest = warm(Answer((A, B)), Answer(read=(A,)), Answer(observed=BUSY))
    assert (outcome.status, outcome.files_after) == ("warm", 2)
    assert names(manifest) == {A, B}
    assert outcome.notes == (
        "more than 1 files are kept: with these alone, compiled 1 graph that no entry held",
    )
    assert outcome.observed == Observation()


FRAMES = f"frames/{'0' * 64}.frames"
TRACED = Observation(torch=TorchWork(traces=2))


@pytest.mark.parametrize("tracing", ["auto", "never"])
def test_frames_are_published_where_a_fresh_process_then_traces_nothing(warm, tracing):
    recording = Answer((A, FRAMES), observed=TRACED)
    outcome, launcher, manifest = warm(
        Answer((A,)), Answer(observed=TRACED), recording, Answer(), tracing=tracing
    )
    assert launcher.phases == ["eager", "compile", "replay", "record", "replay"]
    assert launcher.restored == [{A}, {A}, {A, FRAMES}]
    assert names(manifest) == {A, FRAMES}
    assert outcome.status == "warm"
    assert outcome.notes == ("services of this entry do not trace",)


def test_a_recording_has_what_the_builder_chose_by_timing(warm):
    """PyTorch changes the graph by it before it looks the graph up; a restored process does not read it."""
    timed = [f"inductor/cache/{'0' * 64}", f"inductor/aa/{'c' * 40}.best_config"]
    compiled = Answer((A, B, *timed))
    recording = Answer((A, FRAMES), observed=TRACED)
    outcome, launcher, manifest = warm(
        compiled, Answer(read=(A,)), Answer(observed=TRACED), recording, Answer(), tracing="auto"
    )
    assert launcher.restored == [{A, B, *timed}, {A}, {A, *timed}, {A, FRAMES}]
    assert names(manifest) == {A, FRAMES} and outcome.notes == ("services of this entry do not trace",)


def test_a_recording_that_compiled_is_named(warm):
    outcome, _, _ = warm(
        Answer((A,)), Answer(), Answer((A, FRAMES), observed=BUSY), Answer(observed=BUSY), tracing="auto"
    )
    [note] = outcome.notes
    work = "compiled 1 graph that no entry held"
    assert note == f"services of this entry trace: while it was recorded it {work}; {work}"


NOT_PROVEN = {
    "nothing is recorded": ((Answer((A,), why_traced=("forward: a guard",)),), "forward: a guard"),
    "a process still traces": ((Answer((A, FRAMES)), Answer(observed=TRACED)), "traced 2 functions"),
    "a process compiles": (
        (Answer((A, FRAMES)), Answer(observed=BUSY)),
        "compiled 1 graph that no entry held",
    ),
    "the recording fails": ((Answer(error="it died"),), "the recording failed: it died"),
}


@pytest.mark.parametrize("tracing", ["auto", "never"])
@pytest.mark.parametrize("answers", NOT_PROVEN)
def test_without_a_proof_no_frames_are_published(warm, tracing, answers):
    more, why = NOT_PROVEN[answers]
    outcome, _, manifest = warm(Answer((A,)), Answer(), *more, tracing=tracing)
    if tracing == "auto":
        assert outcome.status == "warm" and names(manifest) == {A}
        assert outcome.notes == (f"services of this entry trace: {why}",)
    else:
        assert (outcome.status, manifest) == ("failed", None)
        assert outcome.reasons[0] == why


def test_a_file_that_only_has_to_exist_stays(warm):
    outcome, _, manifest = warm(Answer((A, B, C)), Answer(read=(A,), required=(C,)), Answer())
    assert (outcome.status, outcome.files_after) == ("warm", 2)
    assert names(manifest) == {A, C}


def test_neighbours_of_read_files_stay_if_one_of_them_matters(warm):
    """No watch sees a mere test of existence."""
    beside = "triton/cc/c.json"
    outcome, launcher, manifest = warm(
        Answer((A, C, beside)), Answer(read=(C,)), Answer(observed=BUSY), Answer()
    )
    assert launcher.restored == [{A, C, beside}, {C}, {C, beside}]
    assert outcome.status == "warm"
    assert names(manifest) == {C, beside}
    assert len(outcome.notes) == 1


def test_files_written_out_of_an_entry_are_no_work(warm):
    """A compiler that writes files out of an entry that it hit has produced nothing."""
    outcome, _, manifest = warm(Answer((A, C)), Answer(read=(A,)), Answer(emitted=(C,)))
    assert (outcome.status, outcome.notes) == ("warm", ())
    assert names(manifest) == {A}
    size = len(f"{A} of compile")
    assert outcome.kinds == {
        "inductor": Share(1, size, 1, size),
        "triton": Share(1, len(f"{C} of compile"), 0, 0, emitted=1),
    }


def test_without_any_observed_read_nothing_is_left_out(warm):
    outcome, _, manifest = warm(Answer((A, B)), Answer(read=()))
    assert outcome.status == "warm"
    assert names(manifest) == {A, B}
    assert "nothing was left out" in outcome.notes[0]


def test_each_replay_starts_from_the_files_of_the_one_before(warm):
    third = Answer((A, B, C), added=(C,))
    outcome, launcher, manifest = warm(Answer((A,)), Answer((A, B), BUSY), third, Answer())
    assert (outcome.status, outcome.replays) == ("warm", 3)
    assert launcher.restored == [{A}, {A, B}, {A, B, C}]
    assert names(manifest) == {A, B, C}


def test_an_unsettled_target_fails_with_the_reason_and_is_not_sealed(warm):
    busy = [Answer((A,), BUSY) for _ in range(MAX_REPLAYS)]
    outcome, launcher, manifest = warm(Answer((A,)), *busy)
    assert manifest is None
    assert (outcome.status, launcher.phases.count("replay")) == ("failed", MAX_REPLAYS)
    assert outcome.reasons == ("not settled after 8 fresh processes: compiled 1 graph that no entry held",)


def test_tuning_is_finalised_over_its_results(warm):
    outcome, launcher, manifest = warm(Answer((A, B), TUNED), Answer((A,), BUSY), Answer())
    assert launcher.phases == ["eager", "compile", "finalise", "replay"]
    assert outcome.finalised
    assert outcome.numbers.first_call == 5.0
    assert names(manifest) == {A}


def test_the_final_replay_decides_on_numbers(warm):
    off = {"a": Compared(1.0, 1.0, 0.1)}
    outcome, _, manifest = warm(Answer((A,)), Answer(compared=off))
    assert manifest is None
    assert "restored output against the builder's" in outcome.reasons[0]


def test_numbers_that_differ_from_eager_end_a_target_before_any_replay(warm):
    outcome, launcher, _ = warm(Answer((A,), compared={"a": Compared(float("nan"), 1.0, 0.1)}))
    assert launcher.phases == ["eager", "compile"]
    assert "differs by nan" in outcome.reasons[0]


def test_a_replay_that_fails_is_not_repeated(warm):
    outcome, _, manifest = warm(Answer((A,)), Answer(error="it died"))
    assert manifest is None
    assert outcome.reasons == ("the replay failed: it died",)


def test_a_target_that_compiles_nothing_is_not_published(warm):
    outcome, _, manifest = warm(Answer(()))
    assert manifest is None
    assert "nothing was compiled" in outcome.reasons[0]


def test_the_pack_holds_the_files_of_the_last_process(warm, tmp_path):
    _, _, manifest = warm(Answer((A,)), Answer((A, B), BUSY), Answer())
    path = next((tmp_path / "out").iterdir())
    with PackReader(path, manifest, open_bundle(path)[1]) as reader:
        assert {reader.read(file) for file in manifest.files} == {
            f"{A} of replay".encode(),
            f"{B} of replay".encode(),
        }


def test_a_defect_during_one_job_is_its_outcome(tmp_path):
    text = 'name = "a/b"\n[[target]]\nid = "x"\nfactory = "m:f"\nmodes = ["default", "max-autotune"]\n'
    text += 'tracing = "always"\n'

    def bug(_: frozenset[str]) -> Answer:
        raise KeyError("bug")

    launcher = Scripted(bug, Answer((A,)), Answer())
    key = SigningKey.generate()
    context = WarmContext(Name.parse("a/b"), launcher, lambda *_: None, sealing=Sealing(key), out=tmp_path)
    first, second = run(plan(parse_spec(text, tmp_path / "w.toml")), context)
    assert (first.status, first.reasons, first.error_status) == ("failed", ("KeyError: 'bug'",), 1)
    assert second.status == "warm"
