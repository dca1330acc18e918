"""Test starts without tracing: recorded frames are given where they fit, and traced otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import QUICK
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.kinds.frames.versions import is_known

from .harness import run

pytestmark = pytest.mark.compiles


@dataclass
class Recorded:
    bundle: Path
    trusted: str
    plain: Path
    """The same entry without frames."""

    def serve(
        self, place: Path, change: str = "nothing", prepared: bool = True, **variables: str
    ) -> dict[str, Any]:
        variables = {**QUICK, "CACHESVC_TRUSTED_KEYS": self.trusted, **variables}
        compilers = change != "nothing"
        arguments = ("serve", str(self.bundle), change)
        result = run(
            "frames.py", *arguments, place=place, compilers=compilers, prepared=prepared, **variables
        )
        assert result.answer["difference"] < 1e-5, "the outputs are those of eager"
        return {**result.answer, "compilers": result.compilers}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    import torch

    if not is_known(torch.__version__):
        pytest.skip(f"no frames on torch {torch.__version__}")
    place = tmp_path_factory.mktemp("frames")
    plain, key_file = place / "plain.cachesvc", place / "signing.key"
    key = SigningKey.generate()
    key.save(key_file)
    variables = {**QUICK, "CACHESVC_TRUSTED_KEYS": str(key.public)}
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
    return Recorded(bundle, str(key.public), plain)


def test_a_fresh_process_traces_nothing(tmp_path: Path, recorded: Recorded) -> None:
    """It has another home, another working directory, no compiler, and weights of its own."""
    answer = recorded.serve(tmp_path, prepared=False)
    assert (answer["traces"], answer["compilations"], answer["compilers"]) == (0, 0, [])
    assert answer["state"] == "hit", answer
    assert answer["imported"] == [], "what only a compile needs is not imported"
    assert answer["same_config"]


@pytest.mark.parametrize("variables", [{"CACHESVC_FRAMES": "0"}, {"CACHESVC_CANARY": "1"}])
def test_a_process_that_shall_trace_traces_and_hits(
    tmp_path: Path, recorded: Recorded, variables: dict[str, str]
) -> None:
    answer = recorded.serve(tmp_path, **variables)
    assert answer["traces"] > 2 and answer["compilations"] == 0
    assert answer["state"] == "hit", answer


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
