"""Test that no hook breaks a compile, whatever differs in a torch that nobody has seen yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import SCALAR, run

NOWHERE = "http://127.0.0.1:9"

CALLED = {
    "torch._dynamo.callback": "callback",
    "torch._functorch._aot_autograd.autograd_cache": "autograd_cache_key",
    "torch._inductor.codecache": "CppCodeCache.load_async",
    "torch._inductor.compile_fx": "compile_fx",
    "torch._inductor.cpp_builder": "run_compile_cmd",
    "torch.compiler._cache": "CacheArtifactManager.record_artifact",
    "torch.library": "Library.impl",
}
"""One name of each module that a compile for the CPU calls."""


@pytest.mark.compiles
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_that_raises_leaves_the_original_in_place(tmp_path: Path, when: str) -> None:
    result = run("changed.py", f"raises-{when}", place=tmp_path, timeout=550, CACHESVC_URL=NOWHERE, **SCALAR)
    answer = result.answer
    assert answer["right"] == [True, True]
    for module, name in CALLED.items():
        assert answer["calls"].get("callback" if name == "callback" else f"{module}.{name}"), (module, name)
    assert sum(answer["failures"].values()) == sum(answer["calls"].values()), "each failure is logged, once"
    assert "Traceback" not in result.err


@pytest.mark.compiles
def test_missing_names_are_reported_and_the_compile_goes_on(tmp_path: Path) -> None:
    answer = run("changed.py", "absent", place=tmp_path, timeout=550, CACHESVC_URL=NOWHERE, **SCALAR).answer
    assert answer["right"] == [True, True] and not answer["failures"]
    assert "torch._inductor.compile_fx.fx_codegen_and_compile" in answer["missing"]
    assert len(answer["names"]) >= 15


@pytest.mark.compiles
def test_new_parameters_are_passed_on(tmp_path: Path) -> None:
    answer = run(
        "changed.py", "parameters", place=tmp_path, timeout=550, CACHESVC_URL=NOWHERE, **SCALAR
    ).answer
    assert answer["right"] == [True, True]
    for module, name in CALLED.items():
        assert name == "callback" or answer["calls"].get(f"{module}.{name}"), (module, name)
    assert answer["kernels"] == 0, "an unknown parameter may decide a kernel's code, so the kernel has no key"
    assert set(answer["failures"]) <= {"CppCodeCache.load_async"}, answer["failures"]
