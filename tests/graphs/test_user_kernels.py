"""An edited Triton kernel is another fact, and another key of PyTorch's; what changes nothing is neither.

Dynamo traces kernels on a machine without a GPU too, once it is told that Triton works there; nothing is
launched. What it made of `kernels_program` is kept in a golden file, so that machines without Triton read it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cachesvc_client.environment.model_hash import model_hash
from cachesvc_client.graphs import user_kernels
from cachesvc_client.graphs.operators import RegisteredFunctions
from cachesvc_client.graphs.request import GraphRequests
from cachesvc_client.wire.compare import differences

PROGRAM = Path(__file__).parent / "kernels_program.py"
GOLDEN = Path(__file__).parents[1] / "golden" / "triton-kernels-1.json"
EDITS = {
    "body": ("mask=mask)) * factor", "mask=mask)) + factor"),
    "what it calls": ("return value * STEP", "return value - STEP"),
    "constant of the module": ("tl.constexpr(2)", "tl.constexpr(3)"),
    "constant argument": ("x.numel(), 0.5, BLOCK=1024)\n    again", "x.numel(), 0.5, BLOCK=512)\n    again"),
    "scalar argument": ("x.numel(), 0.5, BLOCK=1024)\n    again", "x.numel(), 0.25, BLOCK=1024)\n    again"),
    "configurations": ("(64, 128)", "(64, 256)"),
    "grid": ("scaled[(triton.cdiv(x.numel(), 1024),)]", "scaled[(triton.cdiv(x.numel(), 512),)]"),
}
SAME = {
    "moved down": ("import torch\n", "import torch\n\n# A comment.\n\n"),
    "another function beside it": ("def forward(x):", "def unused(x):\n    return x\n\n\ndef forward(x):"),
}
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (make triton)"
)


def program(folder: Path, old: str = "", new: str = "") -> ModuleType:
    """A copy of the program with one edit, imported from another place under another name."""
    text = PROGRAM.read_text()
    assert old in text
    name = f"program_{uuid.uuid4().hex}"
    path = folder / f"{name}.py"
    path.write_text(text.replace(old, new, 1).replace("kernels_program::", f"{name}::"))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def traced(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    """The facts of the program's graph, and PyTorch's own FX key of it."""
    from torch._functorch._aot_autograd.autograd_cache import sanitize_gm_for_cache
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
    from torch._inductor.codecache import compiled_fx_graph_hash

    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    asked, keys = GraphRequests(RegisteredFunctions()), []

    def backend(graph: Any, inputs: Any) -> Any:
        asked.note(graph, inputs)
        with sanitize_gm_for_cache(graph):
            keys.append(compiled_fx_graph_hash(graph, inputs, {}, [])[0])
        raise RuntimeError("nothing is launched here")

    torch._dynamo.reset()
    kernel_side_table.reset_table()
    with torch.no_grad(), pytest.raises(RuntimeError, match="nothing is launched"):
        torch.compile(module.forward, backend=backend, fullgraph=True)(torch.ones(4096))
    facts = asked.facts()
    return {name: facts[name] for name in ("triton_kernels", "operations")}, *keys


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    return traced(program(tmp_path), monkeypatch)


@needs_triton
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_another_fact_and_another_key(
    edit: str, built: tuple[dict[str, Any], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, key = traced(program(tmp_path, *EDITS[edit]), monkeypatch)
    assert key != built[1]
    found = differences(facts, built[0], ("gpu",))
    assert [one.factor for one in found][:1] == ["triton_kernels"], found
    assert facts == json.loads(GOLDEN.read_text())[edit], "recorded with torch 2.13 and Triton 3.9"


@needs_triton
@pytest.mark.parametrize("change", SAME)
def test_what_changes_no_key_changes_no_fact(
    change: str, built: tuple[dict[str, Any], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert traced(program(tmp_path, *SAME[change]), monkeypatch) == built
    assert built[0] == json.loads(GOLDEN.read_text())["as built"]


@pytest.mark.parametrize("edit", EDITS)
def test_the_kernel_is_named_first(edit: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    found = differences(golden[edit], golden["as built"], ("gpu",))
    assert [one.factor for one in found][:1] == ["triton_kernels"]
    assert found[0].mine.startswith("tuned " if edit == "configurations" else "scaled ")


def test_a_kernel_that_cannot_be_read_is_said_to_be_unknown() -> None:
    """The real structure of a launch, with a kernel that is none."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table as table
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    indices = {
        "kernel_idx": table.add_kernel(object()),
        "constant_args_idx": table.add_constant_args({"BLOCK": 64, "hook": object()}),
    }
    given = {"grid": [(x, 1, 1)], "tma_descriptor_metadata": {}, "kwargs": {"x": x}}
    graph.call_function(triton_kernel_wrapper_mutation, (), {**indices, **given})
    assert list(user_kernels.describe_kernels(graph.nodes)) == [
        "kernel source unknown (BLOCK=64, hook=object, grid=*x1x1)"
    ]
    graph.call_function(triton_kernel_wrapper_mutation, (), {**indices, **given, "kernel_idx": 10**6})
    assert list(user_kernels.describe_kernels(graph.nodes))[1:] == ["unknown"]
    table.reset_table()


@pytest.mark.parametrize("event", [{}, {"fn": None, "repr": "k[]"}, {"fn": object(), "repr": None}])
def test_an_event_that_is_told_otherwise_is_no_error(event: dict[str, Any]) -> None:
    noted = GraphRequests(RegisteredFunctions())
    noted.note_launch(event)
    assert noted.facts() == {}


@needs_triton
def test_a_kernel_that_is_launched_eagerly(tmp_path: Path) -> None:
    """With the event as Triton's own code makes it (`JITFunction._call_hook`)."""
    from triton.runtime.jit import JitFunctionInfo

    def noted(*edit: str) -> Any:
        kernel = program(tmp_path, *edit).scaled
        asked = GraphRequests(RegisteredFunctions())
        launch = "scaled[num_warps=4, num_ctas=1](x)"
        asked.note_launch({"fn": JitFunctionInfo("module", "scaled", kernel), "repr": launch})
        return asked.facts()["triton_kernels"]

    assert noted() == noted(*SAME["another function beside it"])
    assert noted() != noted(*SAME["moved down"]), "Triton's key holds the line"
    assert all(noted() != noted(*EDITS[edit]) for edit in ("body", "what it calls", "constant of the module"))
    assert noted()[0].startswith("scaled source ") and noted()[0].endswith(" [num_warps=4, num_ctas=1](x)")


@needs_triton
def test_the_model_hash_knows_kernels_of_other_files(tmp_path: Path) -> None:
    def hashed(*edit: str) -> Any:
        kernels = program(tmp_path, *edit)

        class Service(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return kernels.forward(x)

        return model_hash(Service())

    assert hashed() == hashed(*SAME["moved down"])
    for edit in ("body", "what it calls", "constant of the module"):
        assert hashed() != hashed(*EDITS[edit]), edit
