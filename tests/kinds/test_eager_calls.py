"""Test calls that run as Python while another process compiles, with real torch and with torches that lack
what this needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.hosts import clean_environment
from cachesvc_client.environment.variables import is_eager_policy, parse_wait
from cachesvc_client.hooks import imports
from cachesvc_client.kinds.frames.kind import FramesState
from cachesvc_client.kinds.frames.names import FRAME
from cachesvc_client.kinds.frames.replay import eager_call
from cachesvc_client.kinds.kind import ProcessCallbacks
from tests.e2e.harness import WARMED

PROGRAM = Path(__file__).with_name("eager_program.py")
AFTER = ("function", "nested whole graph", "graph break")
"""Forms that the test compiles after the calls that ran eagerly: each costs seconds."""


@pytest.mark.compiles
def test_calls_of_every_form_are_right_without_a_trace_and_compile_afterwards(tmp_path: Path) -> None:
    own = {"CACHESVC_WAIT": "eager", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), **WARMED}
    result = subprocess.run(
        [sys.executable, str(PROGRAM), *AFTER],
        env={**clean_environment(), **own},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    *forms, last = map(json.loads, result.stdout.splitlines())
    assert len(forms) == 10 and last == {"not_eager": "", "listed": last["listed"]}
    for form in forms:
        traced = 1 if form["form"] == "other backend" else 0
        assert form["eager"] == {"wrong": 0, "traced": traced, "error": ""}, form
    after = {form["form"]: form["after"] for form in forms if "after" in form}
    assert set(after) == set(AFTER)
    assert all(one["graphs"] >= 1 and not one["wrong"] and not one["error"] for one in after.values()), after
    assert last["listed"] < 10, "a call that ran eagerly is not in Dynamo's list of traced frames"


def test_eager_is_a_policy_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_wait(" eager ") == "eager"
    with pytest.raises(ValueError, match="wait, compile, eager"):
        parse_wait("eagerly")
    assert not is_eager_policy()
    monkeypatch.setenv("CACHESVC_WAIT", "eager")
    assert is_eager_policy()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("CACHESVC_WAIT", "eager")
    return []


def state_of(asked: list[str]) -> FramesState:
    def runs_eagerly() -> bool:
        asked.append("asked")
        return True

    state = FramesState()
    state._callbacks = ProcessCallbacks(lambda: None, lambda _: None, runs_eagerly=runs_eagerly)
    return state


def frame(*arguments: Any) -> imports.Call:
    def _compile(code: Any, compiler_fn: Any, export: bool, compile_id: Any) -> str:  # noqa: ARG001
        return "Dynamo's own"

    return imports.Call(_compile, arguments or (None, None, False, None), {})


def test_a_torch_that_was_not_tested_compiles_and_says_why(
    monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="9.1.0"))
    state = state_of(asked)
    assert state._frame(frame()) == "Dynamo's own"
    assert state.not_eager() == "not tested on torch 9.1.0" and not asked


def test_a_torch_with_other_names_compiles_and_says_why(
    monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.13.0"))
    state = state_of(asked)
    assert state._frame(frame()) == "Dynamo's own"
    assert "_TorchCompileInductorWrapper" in state.not_eager() and not asked

    def renamed(code: Any, backend: Any) -> str:  # noqa: ARG001
        return "Dynamo's own"

    other = state_of(asked)
    assert other._frame(imports.Call(renamed, (None, None), {})) == "Dynamo's own"
    assert "compiler_fn" in other.not_eager()


def test_an_answer_that_this_torch_lacks_breaks_no_call(
    monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.13.0"))
    monkeypatch.setattr(eager_call, "is_of_inductor", lambda _: True)
    state = state_of(asked)
    assert state._frame(frame()) == "Dynamo's own"
    assert asked == ["asked"] and state.not_eager()
    assert state._frame(frame()) == "Dynamo's own"
    assert asked == ["asked"], "nothing is tried again"


def test_without_the_policy_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHESVC_WAIT", raising=False)
    asked: list[str] = []
    assert state_of(asked)._frame(frame()) == "Dynamo's own" and not asked


def test_a_missing_hook_is_the_reason() -> None:
    state = FramesState()
    state._note_missing(FRAME)
    assert state.not_eager() == "this torch has no torch._dynamo.convert_frame._compile"
