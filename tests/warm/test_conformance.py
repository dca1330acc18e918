"""Test that each check of the conformance probe passes in this torch, and notices what it is there for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import WARMED, environment

PROGRAM = Path(__file__).parent / "broken_torch.py"
BROKEN = {
    "the canary is left out": "the canary was not called",
    "the canary judges nothing": "wrong numbers reached the caller",
    "default_dtype": "code of another setting was a hit",
    "autocast_state": "code of another setting was a hit",
    "cpp_runtime_thread_count": "the key is the same under another setting",
    "nothing is recorded": "files were not recorded",
    "wrappers have fixed parameters": "raised TypeError",
    "hooks are not put in place": "hook torch._inductor.compile_fx.compile_fx is not in place",
    "nothing is hooked": "a compile was not counted",
}
"""What the program breaks -> a part of the reason of the check that must notice it."""


@pytest.mark.compiles
@pytest.mark.timeout(600)
def test_each_check_passes_here_and_notices_what_is_broken(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, PROGRAM],
        env=environment(tmp_path, **WARMED, TORCHINDUCTOR_COMPILE_THREADS="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    reasons = json.loads(result.stdout.splitlines()[-1])
    passed = {name: reason for name, reason in reasons.items() if name.startswith("nothing: ")}
    assert len(passed) == 8 and set(passed.values()) == {""}, passed
    for broken, says in BROKEN.items():
        assert says in reasons[broken], (broken, reasons[broken])
    assert reasons.keys() == passed.keys() | BROKEN.keys()
