"""Test what digests and frames have of the real Triton: functions outside of kernels, and kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_warm_for_gpu import _run, pytestmark  # noqa: F401 - the mark skips these tests too

CODE = """\
import sys, types
import torch, triton
from triton import cdiv
from cachesvc_client.graphs.code.followed import FollowedCode

kernels = types.ModuleType("kernels")
kernels.triton = triton

def by_module(x): return triton.cdiv(x.numel(), 4), triton.next_power_of_2(x.numel())
def by_name(x): return cdiv(x.numel(), 4)
def by_an_own_module(x): return kernels.triton.cdiv(x.numel(), 4)
def types_of_kernels(x): return triton.language.bfloat16, triton.language.float32.primitive_bitwidth
def setting(x): return triton.knobs.runtime.debug

if "used" in sys.argv:
    by_module(torch.ones(8)), by_name(torch.ones(8))
if "changed" in sys.argv:
    @triton.constexpr_function
    def rounded_down(x, y): return x // y
    triton.cdiv = cdiv = rounded_down
for code in (by_module, by_name, by_an_own_module, types_of_kernels, setting):
    followed = FollowedCode([code])
    print(followed.unknown or followed.digest)
"""


def _said(folder: Path, *words: str) -> list[str]:
    (folder / "code.py").write_text(CODE)  # Triton reads the source of what it runs
    return _run(folder, str(folder / "code.py"), *words).splitlines()


def test_tritons_own_functions_are_named_and_its_settings_are_not_known(tmp_path: Path) -> None:
    *known, setting = said = _said(tmp_path)
    assert all(len(line) == 12 for line in known), known
    assert setting == "code that calls triton.knobs.runtime"
    assert _said(tmp_path, "used") == said


def test_a_program_that_replaces_such_a_function_has_another_key(tmp_path: Path) -> None:
    assert not set(_said(tmp_path)[:3]) & set(_said(tmp_path, "changed")[:3])


KERNELS = """\
import triton
import triton.language as tl
from cachesvc_client.kinds.frames.describe.objects import describe

OFFSET = tl.constexpr(0.0)
CONFIGURATIONS = [triton.Config({"BLOCK": size}) for size in (64, 128)]

def pruned(configurations, arguments, **more): return configurations[:1]

@triton.jit
def finished(total, scale):
    return total * scale + OFFSET

@triton.autotune(configs=CONFIGURATIONS, key=["count"], prune_configs_by={"early_config_prune": pruned})
@triton.heuristics({"FAST": lambda arguments: arguments["count"] > 64})
@triton.jit(do_not_specialize=["count"])
def summed(left, out, count, scale, BLOCK: tl.constexpr, FAST: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, finished(tl.load(left + place), scale), mask=place < count)

print(describe(summed))
"""
EDITS = {
    "the body": ("place < count", "place <= count"),
    "a function that it calls": ("total * scale", "scale / total"),
    "a constant": ("constexpr(0.0)", "constexpr(1.0)"),
    "a configuration": ("(64, 128)", "(64, 256)"),
    "the configurations that are tried": ("configurations[:1]", "configurations[1:]"),
    "a constant that is computed": ("> 64", "> 63"),
    "how Triton specializes": ('["count"]', '["scale"]'),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_frames_words_of_a_kernel_have_what_decides_its_code(edit: str, tmp_path: Path) -> None:
    said = []
    for text in (KERNELS, KERNELS, KERNELS.replace(*EDITS[edit])):
        (tmp_path / "kernels.py").write_text(text)
        said.append(_run(tmp_path, str(tmp_path / "kernels.py")))
    assert said[0] == said[1] != said[2] and said[0].startswith("kernel ")
