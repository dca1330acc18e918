"""Test that generated code is made lean only where it stays the same code."""

from __future__ import annotations

import importlib
import types

import pytest

from cachesvc_client.kinds.frames.record.sources import drop_texts, lean

HEAD = """\
import torch
from torch._inductor.codegen.memory_planning import _align as align
from torch._inductor.select_algorithm import extern_kernels

aten = torch.ops.aten
inductor_ops = torch.ops.inductor
alloc_from_pool = torch.ops.inductor._alloc_from_pool


def call(args):
    x, y, out = args
"""


@pytest.fixture(autouse=True)
def _operators() -> None:
    """Import what the process that records has imported."""
    importlib.import_module("torch._inductor.select_algorithm")


def test_unused_imports_go_and_lines_stay() -> None:
    source = HEAD + "    extern_kernels.mm(x, y, out=out)\n    return out\n"
    short = lean(source)
    assert len(short.splitlines()) == len(source.splitlines())
    assert "\nextern_kernels = torch  #" in short
    scope: dict[str, object] = {}
    exec(compile(short, "made.py", "exec"), scope)
    import torch

    assert scope["extern_kernels"] is torch and "align" not in scope


@pytest.mark.parametrize(
    "body",
    [
        "    return align(x)\n",
        "    return extern_kernels.bias_addmm(x, y)\n",  # a function of Inductor's
        "    return extern_kernels\n",
        "    return extern_kernels.no_such_operator(x)\n",
    ],
)
def test_what_is_used_is_imported(body: str) -> None:
    kept = "align" if "align" in body else "extern_kernels"
    lines = [line for line in lean(HEAD + body).splitlines() if line.startswith("from ")]
    assert [line.split()[-1] for line in lines] == [kept]


@pytest.mark.parametrize(
    "body",
    [
        "    return torch.ops.team.scale.default(x)\n",
        "    return inductor_ops._mm_plus_mm(x, y, x, y)\n",
        "    return alloc_from_pool(x, 0)\n",
    ],
)
def test_operators_that_an_import_may_register_keep_all_imports(body: str) -> None:
    assert lean(HEAD + body) == HEAD + body


def test_texts_for_logs_are_left_out() -> None:
    """PyTorch asks whether there is a text of a backward: one that is not there stays so."""
    graph = types.SimpleNamespace(
        source_code="code",
        runnable_graph_str="long",
        inductor_post_grad_graph_str="long",
        _fx_graph_cache_debug_lines=["long"],
    )
    content = types.SimpleNamespace(
        compiled_fw=types.SimpleNamespace(result=graph),
        compiled_bw=None,
        aot_joint_graph_str=None,
        aot_forward_graph_str="long",
        aot_backward_graph_str=None,
    )
    drop_texts(types.SimpleNamespace(content=content))
    assert "long" not in f"{graph} {content}" and graph.source_code == "code"
    assert (content.aot_joint_graph_str, content.aot_backward_graph_str) == (None, None)
    assert isinstance(content.aot_forward_graph_str, str) and graph._fx_graph_cache_debug_lines == []
