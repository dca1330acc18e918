"""Test starts without tracing: recorded frames are given where they fit, and traced otherwise."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.kinds.frames.versions import is_known
from tests.prepared import COMPILES, prepared_python
from tests.python_process import running_python

from .harness import PROGRAMS, SCALAR, ProgramResult, environment, run
from .rebuild import rebuild
from .registries import wait_for

pytestmark = pytest.mark.compiles


@dataclass
class Recorded:
    bundle: Path
    trusted: str
    plain: Path
    """The same entry without frames."""
    key: SigningKey

    def serve(
        self, place: Path, change: str = "nothing", prepared: bool = True, **variables: str
    ) -> dict[str, Any]:
        compilers = change != "nothing"
        result = self.run(self.bundle, place, change, compilers, prepared, **variables)
        assert result.answer["difference"] < 1e-5, "the outputs are those of eager"
        return {**result.answer, "compilers": result.compilers}

    def run(
        self,
        bundle: Path,
        place: Path,
        change: str = "nothing",
        compilers: bool = True,
        prepared: bool = True,
        **variables: str,
    ) -> ProgramResult:
        variables = {**SCALAR, "CACHESVC_TRUSTED_KEYS": self.trusted, **variables}
        arguments = ("serve", str(bundle), change)
        return run("frames.py", *arguments, place=place, compilers=compilers, prepared=prepared, **variables)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    import torch

    if not is_known(torch.__version__):
        pytest.skip(f"no frames on torch {torch.__version__}")
    place = tmp_path_factory.mktemp("frames")
    plain, key_file = place / "plain.cachesvc", place / "signing.key"
    key = SigningKey.generate()
    key.save(key_file)
    variables = {**SCALAR, "CACHESVC_TRUSTED_KEYS": str(key.public)}
    made = run("frames.py", "compile", str(plain), str(key_file), place=place, prepared=True, **variables)
    assert made.answer["traces"] > 2 and made.answer["compilations"]
    bundle = place / "recorded.cachesvc"
    bundle.write_bytes(plain.read_bytes())
    recording = run(
        "frames.py",
        "record",
        str(bundle),
        str(key_file),
        place=place / "recorder",
        prepared=True,
        **variables,
    ).answer
    assert recording["not_recorded"] == []
    return Recorded(bundle, str(key.public), plain, key)


def test_a_fresh_process_traces_nothing(tmp_path: Path, recorded: Recorded) -> None:
    """It has another home, another working directory, no compiler, and weights of its own."""
    answer = recorded.serve(tmp_path, prepared=False)
    assert (answer["traces"], answer["compilations"], answer["compilers"]) == (0, 0, [])
    assert answer["state"] == "hit", answer
    assert answer["imported"] == [], "what only a compile needs is not imported"
    assert answer["same_config"]
    names = {"by_builder": True, "while_loading": 0, "here": True, "later": 1}
    assert answer["kernel_names"] == names, "PyTorch's sources are not hashed to load a graph"
    assert answer["recorded_sources"] is True
    assert answer["explained"] == [], "a variant that does not fit is no reason where another one does"


def test_after_a_reset_of_dynamo_graphs_are_loaded_anew(tmp_path: Path, recorded: Recorded) -> None:
    """CUDA graphs end with a reset: one that was loaded before raises "Running CUDAGraph after shutdown"."""
    differences, graphs, of_both = recorded.serve(tmp_path)["after_reset"]
    assert graphs > 2 and of_both == 0 and differences == [0.0, 0.0, 0.0]


def test_a_start_that_traces_nothing_says_so_at_the_first_pause(tmp_path: Path, recorded: Recorded) -> None:
    """It never enters ``compile_fx``. The program looks by itself every ten minutes alone, and is killed."""
    arguments = [str(PROGRAMS / "frames.py"), "serve", str(recorded.bundle), "nothing"]
    variables = {**SCALAR, "CACHESVC_TRUSTED_KEYS": recorded.trusted, "CACHESVC_LOG": "info"}
    variables = environment(tmp_path, UNTIL_KILLED="1", **variables)
    python = prepared_python(COMPILES, variables)
    with running_python(arguments, tmp_path, variables, tmp_path / "work", python) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["traces"] == 0
        wait_for(lambda: ": hit: nothing compiled" in (tmp_path / "err").read_text(), 30)
        assert process.poll() is None


def test_a_process_that_shall_trace_traces_and_hits(tmp_path: Path, recorded: Recorded) -> None:
    answer = recorded.serve(tmp_path, CACHESVC_FRAMES="0")
    assert answer["traces"] > 2 and answer["compilations"] == 0
    names = {"by_builder": False, "while_loading": 1, "here": True, "later": 2}
    assert answer["kernel_names"] == names, "a process that traces is as PyTorch made it"
    assert answer["state"] == "hit", answer


def test_a_canary_compares_each_graph_of_the_frames_and_traces_nothing(
    tmp_path: Path, recorded: Recorded
) -> None:
    """Two graphs for one size, and two for all sizes."""
    answer = recorded.serve(tmp_path, CACHESVC_CANARY="1")
    assert (answer["traces"], answer["compilations"], answer["compilers"]) == (0, 0, [])
    assert answer["compared"] == 4 and answer["state"] == "hit", answer
    assert not any("canary" in reason for reason in answer["reasons"]), answer["reasons"]


def test_a_canary_traces_what_it_cannot_compare(tmp_path: Path, recorded: Recorded) -> None:
    """These graphs are compared where they are compiled."""
    answer = recorded.serve(tmp_path, "graphs_not_kept", CACHESVC_CANARY="1")
    assert answer["traces"] > 2 and answer["compilations"] == 0 and answer["compared"] == 4, answer
    why = "a canary runs, and cannot compare a graph: it holds tensors"
    assert any(why in reason for reason in answer["reasons"]), answer["reasons"]


def test_a_sampled_start_traces_nothing_and_compares_each_graph(tmp_path: Path, recorded: Recorded) -> None:
    answer = recorded.serve(tmp_path, CACHESVC_CANARY="sample:1")
    assert (answer["traces"], answer["compilations"], answer["compilers"]) == (0, 0, [])
    assert answer["compared"] == 4 and answer["state"] == "hit", answer
    assert not any("canary" in reason for reason in answer["reasons"]), answer["reasons"]


def test_a_sampled_start_uses_frames_that_it_cannot_compare(tmp_path: Path, recorded: Recorded) -> None:
    answer = recorded.serve(tmp_path, "graphs_not_kept", CACHESVC_CANARY="sample:1")
    assert answer["traces"] == 0 and answer["compared"] == 0 and answer["state"] == "hit", answer
    assert "canary: not compared: it holds tensors" in answer["reasons"], answer["reasons"]


def test_a_sampled_start_withdraws_frames_with_wrong_numbers(tmp_path: Path, recorded: Recorded) -> None:
    wrong = wrong_frames(recorded, tmp_path / "wrong.cachesvc")
    first = recorded.run(wrong, tmp_path / "node", "one_size", CACHESVC_CANARY="sample:1")
    answer = first.answer
    assert answer["difference"] > 1e-3 and answer["traces"] == 0, "the answer has gone out"
    assert answer["compared"] == 2, "both graphs of the first call"
    assert answer["state"] == "inert" and len(answer["distrusted"]) == 1, answer
    assert first.err.count("differs from eager") == 1 and "Traceback" not in first.err

    answer = recorded.run(wrong, tmp_path / "node", "no_call").answer
    assert any("a canary on this node found its numbers wrong" in reason for reason in answer["reasons"])


class _Abort:
    """Aborts the process that unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return os.abort, ()


def test_frames_that_kill_the_process_are_given_to_no_other_process_of_the_node(
    tmp_path: Path, recorded: Recorded
) -> None:
    data = pickle.dumps(_Abort())

    def change(file: SourceFile) -> SourceFile:
        return (
            replace(file, path=hashlib.sha256(data).hexdigest() + ".frames", data=data)
            if file.kind == "frames"
            else file
        )

    wrong = tmp_path / "wrong.cachesvc"
    rebuild(recorded.bundle, recorded.key, wrong, change)
    for _ in range(2):
        assert recorded.run(wrong, tmp_path).code == -signal.SIGABRT
    answer = recorded.run(wrong, tmp_path).answer
    assert answer["difference"] < 1e-5 and answer["traces"] > 2 and answer["state"] == "miss", answer


def test_a_canary_withdraws_frames_with_wrong_numbers(tmp_path: Path, recorded: Recorded) -> None:
    wrong = wrong_frames(recorded, tmp_path / "wrong.cachesvc")
    answer = recorded.run(wrong, tmp_path / "without", "one_size").answer
    assert answer["difference"] > 1e-3 and answer["traces"] == 0, "without a canary the service has them"

    first = recorded.run(wrong, tmp_path / "node", "one_size", CACHESVC_CANARY="1")
    answer = first.answer
    assert answer["difference"] < 1e-5 and answer["compared"] == 1, answer
    assert answer["traces"] == 3, "what follows the graph break at once, then both functions"
    assert answer["compilations"] > 0, answer
    assert answer["state"] == "inert" and len(answer["distrusted"]) == 1, answer
    assert "differs from eager" in answer["reasons"][0], answer["reasons"]
    assert first.err.count("differs from eager") == 1 and "Traceback" not in first.err

    answer = recorded.run(wrong, tmp_path / "node", "no_call").answer
    assert answer["revisions"] == 0, answer
    assert any("a canary on this node found its numbers wrong" in reason for reason in answer["reasons"])


def test_under_strict_a_wrong_frame_is_an_error(tmp_path: Path, recorded: Recorded) -> None:
    wrong = wrong_frames(recorded, tmp_path / "wrong.cachesvc")
    result = recorded.run(wrong, tmp_path, CACHESVC_CANARY="1", CACHESVC_STRICT="1")
    assert result.code != 0 and "the canary found wrong numbers" in result.err


def wrong_frames(recorded: Recorded, bundle: Path) -> Path:
    """Build the same entry with frames whose compiled graphs multiply by three, and leave all else."""

    def change(file: SourceFile) -> SourceFile:
        if file.kind != "frames":
            return file
        data = file.data.replace(b"alpha=1, beta=1", b"alpha=3, beta=1")
        assert data != file.data
        return replace(file, path=hashlib.sha256(data).hexdigest() + ".frames", data=data)

    rebuild(recorded.bundle, recorded.key, bundle, change)
    return bundle


FITS = {"tied_weights"}
"""Changes that a trace of this model does not see: its parameters are inputs of the compiled code."""
WHY = {
    "another_function": "frames_model.scaled is other code",
    "another_global": "SCALE",
    "hook_of_all_modules": "holds a hook of all modules",
}


@pytest.mark.parametrize(
    "change",
    [
        *("another_function", "another_global", "forward_hook", "hook_of_all_modules", "another_module"),
        *("another_dtype", "tied_weights", "keyword"),
    ],
)
def test_a_change_is_traced_with_right_numbers(tmp_path: Path, recorded: Recorded, change: str) -> None:
    answer = recorded.serve(tmp_path, change)
    if change in FITS:
        assert answer["traces"] == 0, answer
    else:
        assert answer["traces"] > 0, answer
        assert WHY.get(change, "") in " ".join(answer["explained"]), answer["explained"]


def test_damaged_frames_are_not_read(tmp_path: Path, recorded: Recorded) -> None:
    """Nobody else may write into the private folder; a damaged disk may."""
    assert recorded.serve(tmp_path)["traces"] == 0
    [frames] = (tmp_path / "home").glob(".cache/cachesvc/v1/folders/*/inductor/frames/*.frames")
    data = bytearray(frames.read_bytes())
    data[len(data) // 2] ^= 1
    frames.chmod(0o600)
    frames.write_bytes(data)
    answer = recorded.serve(tmp_path)
    assert answer["state"] == "hit" and answer["compilations"] == 0
