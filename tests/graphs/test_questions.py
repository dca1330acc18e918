"""Test that code below Dynamo has no digest where it asks what is no function of its arguments; and that what
such code calls every day costs none."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.graphs.code.followed import FollowedCode

_IMPORTS = """\
import copyreg, functools, glob, inspect, io, traceback
import logging, math, mimetypes, numpy, os, pathlib, random
import signal, sys, threading, time, torch, torch._dynamo, torch.distributed, types, warnings
from pathlib import Path
from torch.serialization import get_crc32_options as crc
"""
_NAMES = """\
x, E, G = [1], eval, torch.Generator()
TABLE, ONE = {'a': crc, 't': torch}, types.SimpleNamespace(t=torch)
"""
ASKED = [
    "torch.sparse.check_sparse_tensor_invariants.is_enabled()",
    "torch.serialization.get_safe_globals()",
    "torch.__future__.get_swap_module_params_on_conversion()",
    "torch._dynamo.list_backends(None)",
    "torch._C._get_cudnn_benchmark()",
    "torch.default_generator.initial_seed()",
    "torch.get_rng_state()",
    "torch.from_file('a', size=1)",
    "torch.load('a')",
    "torch._dynamo.config.get_config_copy()",
    "hasattr(torch.ops.asked, 'one')",
    "getattr(torch.serialization, 'get_' + 'x')() or torch.serialization.get_crc32_options",
    "(lambda t: t.serialization.get_crc32_options())(torch)",
    "crc()",
    "[crc][0]()",
    "TABLE['a']()",
    "sys.modules.get('asked')",
    "sys.getprofile()",
    "warnings.filters",
    "os.sched_getaffinity(0)",
    "signal.getsignal(1)",
    "time.localtime(0)",
    "threading.active_count()",
    "random.random()",
    "numpy.random.rand()",
    "numpy.load('a')",
    "numpy.array2string(1)",
    "glob.glob('a')",
    "pathlib.Path('a').read_text()",
    "Path('a').read_text()",
    "HERE.read_text()",
    "inspect.getsource(crc)",
    "mimetypes.guess_type('a')",
    "torch.Tensor.__subclasses__()",
    "torch.UntypedStorage.from_file('a')",
    "torch.export.load('a')",
    "numpy.memmap('a')",
    "io.FileIO('a')",
    "threading.get_native_id()",
    "traceback.extract_stack()",
    "copyreg.dispatch_table",
    "TABLE['t'].serialization.get_crc32_options()",
    "ONE.t.serialization.get_crc32_options()",
    "E('1')",
    "G.initial_seed()",
    "torch.serialization._package_registry",
    "torch.backends.cuda.cufft_plan_cache.max_size",
    "torch.utils._pytree.SUPPORTED_NODES",
]
CALLED = [
    "torch.empty_like(x), torch.nn.functional.silu(x), torch.linalg.inv(x), torch.ops.aten.sin.default(x)",
    "torch._check(True), torch.autograd.grad(x, x), torch.utils.checkpoint.checkpoint(abs, x)",
    "torch.utils._pytree.tree_map(abs, x), torch.compiler.is_compiling(), torch.is_grad_enabled()",
    "torch.get_default_dtype(), torch.cuda.is_available(), torch.distributed.get_world_size()",
    "torch.enable_grad(), torch.autocast('cpu'), torch.cuda.current_stream(), torch.jit.is_scripting()",
    "math.sqrt(4), numpy.prod(x), functools.reduce(max, x), os.path.join('a', 'b'), HERE.name",
    "warnings.warn('a'), logging.getLogger('a').debug('b'), time.perf_counter(), sys.exc_info()",
    "threading.Lock(), threading.RLock(), threading.Event()",
    "sys.flags.optimize, torch.float32, torch.strided, inspect.signature(abs), x.seed(x.load)",
]


def unknown(read: str) -> str:
    module = types.ModuleType("asked_program")
    vars(module)["HERE"] = Path("a")
    exec(f"{_IMPORTS}{_NAMES}def read():\n    return {read}\n", vars(module))
    return FollowedCode([vars(module)["read"]]).unknown


@pytest.mark.parametrize("read", ASKED)
def test_code_that_asks_the_process_has_no_digest(read: str) -> None:
    assert unknown(read)


@pytest.mark.parametrize(
    ("imports", "read", "asks"),
    [
        ("import torch.serialization as one", "one.get_crc32_options()", True),
        ("import torch.serialization", "torch.serialization.get_crc32_options()", True),
        ("from torch.serialization import get_crc32_options", "get_crc32_options()", True),
        ("from torch import serialization", "serialization.get_crc32_options()", True),
        ("import torch", "torch.ones(1), [].load, [].seed", False),
    ],
)
def test_what_code_imports_while_it_runs_is_asked_too(imports: str, read: str, asks: bool) -> None:
    names: dict[str, Any] = {}
    exec(f"def read():\n    {imports}\n    return {read}\n", names)
    assert bool(FollowedCode([names["read"]]).unknown) == asks


SEEDS = """\
import sys, torch
from cachesvc_client.graphs.code.followed import FollowedCode
S = {"alpha", "beta", "gamma", "delta"}
class K:
    def __hash__(self):
        return hash("alpha")
for read in (
    lambda: hash("alpha"), lambda: [*{"alpha", "beta", "gamma"}][0], lambda: next(iter(S)),
    lambda: dict.fromkeys(S), lambda x: x in S, lambda x: x in {"alpha", "beta"}, lambda: K(),
    lambda: [*{1, 2, 3}],
):
    print(FollowedCode([read]).digest)
"""


def test_what_follows_from_the_seed_of_hashes_is_in_the_digest() -> None:
    """Each process has another seed by default. A test for membership asks nothing of it."""
    one, same, other = (
        subprocess.run(
            [sys.executable, "-c", SEEDS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for seed in ("1", "1", "2")
    )
    assert one == same
    assert [mine != its for mine, its in zip(one, other, strict=True)] == [True] * 4 + [False] * 4


def test_a_function_that_hashes_what_is_followed_may_ask_for_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "inspect.getsource" in unknown("inspect.getsource(abs)")
    monkeypatch.setattr("cachesvc_client.graphs.code.questions.answered", {"asked_program.read"})
    assert unknown("inspect.getsource(abs)") == ""


@pytest.mark.parametrize("read", CALLED)
def test_what_answers_by_its_arguments_costs_no_digest(read: str) -> None:
    assert unknown(read) == ""
