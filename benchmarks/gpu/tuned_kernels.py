"""Run kernels under ``triton.autotune`` in the place of a service: ``python tuned_kernels.py ANSWER``.

Each form is a function of its own: outside of compiled code and inside of it. ANSWER gets JSON: for each form
how often Triton or Inductor tuned, seconds, and whether the numbers are those of PyTorch. With
``TUNED_PUBLISH``, a name, the process publishes at its end. ``TUNED_TIMES`` changes the kernels' code."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cachesvc_client

if os.environ.get("CACHESVC_NAME"):
    cachesvc_client.attach()

import torch
import triton
import triton.language as tl
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from triton.runtime.autotuner import Autotuner

from cachesvc_client.wire.codec import plain

TIMES = tl.constexpr(float(os.environ.get("TUNED_TIMES", "2.0")))
"""A constant of the kernels: it is part of their code."""
_STAGES = itertools.count(1)


def _configs(**extra: Any) -> list[triton.Config]:
    """Return four candidates that no other form has: Triton would share its timings between equal ones."""
    return [
        triton.Config({"BLOCK": size}, num_warps=warps, num_stages=next(_STAGES), **extra)
        for size in (256, 1024)
        for warps in (4, 8)
    ]


def _zero(arguments: dict[str, Any], **_: Any) -> None:
    arguments["out"].zero_()


def _first_two(configs: list[triton.Config], _arguments: Any, **_: Any) -> list[triton.Config]:
    return configs[:2]


def _kernel() -> Any:
    """Return a new function of Triton's: each form tunes one of its own."""

    @triton.jit
    def scaled_sum(left, right, out, count, scale, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = place < count
        total = tl.load(left + place, mask=mask) + tl.load(right + place, mask=mask)
        tl.store(out + place, total * scale * TIMES, mask=mask)

    return scaled_sum


def _kernel_of_even_sizes() -> Any:
    """Return a function of Triton's with a constant that its arguments decide."""

    @triton.jit
    def even_sum(left, right, out, count, scale, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = place < count
        total = tl.load(left + place, mask=mask) + tl.load(right + place, mask=mask)
        if EVEN:
            total = total * TIMES
        tl.store(out + place, total * scale, mask=mask)

    return even_sum


KERNELS: dict[str, Any] = {
    "plain": triton.autotune(configs=_configs(), key=["count"])(_kernel()),
    "no key": triton.autotune(configs=_configs(), key=[])(_kernel()),
    "reset_to_zero": triton.autotune(configs=_configs(), key=["count"], reset_to_zero=["out"])(_kernel()),
    "restore_value": triton.autotune(configs=_configs(), key=["count"], restore_value=["out"])(_kernel()),
    "pruned": triton.autotune(
        configs=_configs(), key=["count"], prune_configs_by={"early_config_prune": _first_two}
    )(_kernel()),
    "hook of a configuration": triton.autotune(configs=_configs(pre_hook=_zero), key=["count"])(_kernel()),
    "heuristics": triton.autotune(configs=_configs(), key=["count"])(
        triton.heuristics({"EVEN": lambda arguments: arguments["count"] % 2 == 0})(_kernel_of_even_sizes())
    ),
    "use_cuda_graph": triton.autotune(configs=_configs(), key=["count"], use_cuda_graph=True)(_kernel()),
    "inside": triton.autotune(configs=_configs(), key=["count"])(_kernel()),
    "inside, reset_to_zero": triton.autotune(configs=_configs(), key=["count"], reset_to_zero=["out"])(
        _kernel()
    ),
    "inside, an operator": triton.autotune(configs=_configs(), key=["count"])(_kernel()),
    "inside, two sizes": triton.autotune(configs=_configs(), key=["count"])(_kernel()),
}


def _launch(kernel: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(left)
    grid = lambda meta: (triton.cdiv(left.numel(), meta["BLOCK"]),)  # noqa: E731
    kernel[grid](left, right, out, left.numel(), 0.5)
    return out


@torch.library.triton_op("tuned::scaled_sum", mutates_args={})
def operator(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Add and scale by a kernel that PyTorch sees through."""
    out = torch.empty_like(left)
    grid = lambda meta: (triton.cdiv(left.numel(), meta["BLOCK"]),)  # noqa: E731
    torch.library.wrap_triton(KERNELS["inside, an operator"])[grid](left, right, out, left.numel(), 0.5)
    return out


def _functions() -> dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """Return each form's function."""

    def inside(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return _launch(KERNELS["inside"], left, right).sin()

    def inside_reset(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return _launch(KERNELS["inside, reset_to_zero"], left, right).sin()

    def inside_operator(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return operator(left, right).sin()

    def inside_sizes(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return _launch(KERNELS["inside, two sizes"], left, right).sin()

    outside = {
        name: (lambda left, right, kernel=kernel: _launch(kernel, left, right))
        for name, kernel in KERNELS.items()
        if not name.startswith("inside")
    }
    return {
        **outside,
        "inside": torch.compile(inside),
        "inside, reset_to_zero": torch.compile(inside_reset),
        "inside, an operator": torch.compile(inside_operator),
        "inside, two sizes": torch.compile(inside_sizes),
    }


def _count_tuning() -> list[int]:
    """Count each time that Triton or Inductor measures candidates, apart from cachesvc."""
    tuned = [0]
    bench, choose = Autotuner._bench, CachingAutotuner.autotune_to_one_config

    def counting_bench(self: Any, *arguments: Any, **options: Any) -> Any:
        tuned[0] += 1
        return bench(self, *arguments, **options)

    def counting_choice(self: Any, *arguments: Any, **options: Any) -> Any:
        tuned[0] += 1
        return choose(self, *arguments, **options)

    Autotuner._bench, CachingAutotuner.autotune_to_one_config = counting_bench, counting_choice
    return tuned


def _run(name: str, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """Run a form twice for each size. Return whether it was right, and the digest of its last output."""
    right, answer = True, torch.empty(0)
    for count in (4096, 5120) if "two sizes" in name else (4096,):
        left = torch.linspace(0, 1, count, device="cuda")
        second = torch.linspace(1, 3, count, device="cuda")
        expected = (left + second) * 0.5 * TIMES.value
        if name.startswith("inside"):
            expected = expected.sin()
        for _ in range(2):
            answer = function(left, second)
            torch.cuda.synchronize()
            right = right and bool(torch.allclose(answer, expected, rtol=1e-5, atol=1e-5))
    return {"right": right, "digest": hashlib.sha256(answer.cpu().numpy().tobytes()).hexdigest()}


def main() -> None:
    """Run every form twice."""
    tuned, forms = _count_tuning(), {}
    for name, function in _functions().items():
        begin, before = time.monotonic(), tuned[0]
        try:
            result = _run(name, function)
        except Exception as error:  # noqa: BLE001 - one form that a version lacks must not hide the others
            result = {"right": False, "error": repr(error)[-500:]}
        result |= {"tuned": tuned[0] - before, "seconds": round(time.monotonic() - begin, 3)}
        forms[name] = result
    if publish := os.environ.get("TUNED_PUBLISH"):
        cachesvc_client.publish(publish, target="tuned")
    report = plain(cachesvc_client.report())
    wanted = ("state", "reasons", "observed", "kinds", "compared")
    answer = {"forms": forms, **{name: report[name] for name in wanted}}
    Path(sys.argv[1]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
