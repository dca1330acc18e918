"""Test that an edit of a Triton kernel changes a fact and PyTorch's key, and that a change without effect
changes neither.

Dynamo traces kernels on a machine without a GPU too, once it believes that Triton works there; nothing is
launched. A golden file has the traces of `kernels_program`, for machines without Triton."""

from __future__ import annotations

import importlib.util
import json
import linecache
import sys
import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cachesvc_client.environment.model_hash import model_hash
from cachesvc_client.graphs.code import user_kernels
from cachesvc_client.graphs.code.followed import FollowedCode
from cachesvc_client.graphs.operators import RegisteredFunctions
from cachesvc_client.graphs.request import GraphRequests
from cachesvc_client.wire.compare import differences
from tests.releases import TRITON

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
    """Return a copy of the program with one edit, imported from another place under another name."""
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


def trace(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    """Return the facts of the program's graph, and PyTorch's own FX key of it."""
    from torch._functorch._aot_autograd.autograd_cache import sanitize_gm_for_cache
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
    from torch._inductor.codecache import compiled_fx_graph_hash

    monkeypatch.setattr("torch.utils._triton.has_triton", lambda *_, **__: True)
    requests, keys = GraphRequests(RegisteredFunctions()), []

    def backend(graph: Any, inputs: Any) -> Any:
        requests.note(graph, inputs)
        with sanitize_gm_for_cache(graph):
            keys.append(compiled_fx_graph_hash(graph, inputs, {}, [])[0])
        raise RuntimeError("nothing is launched here")

    torch._dynamo.reset()
    kernel_side_table.reset_table()
    with torch.no_grad(), pytest.raises(RuntimeError, match="nothing is launched"):
        torch.compile(module.forward, backend=backend, fullgraph=True)(torch.ones(4096))
    facts = requests.facts()
    return {name: facts[name] for name in ("triton_kernels", "operations")}, *keys


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    return trace(program(tmp_path), monkeypatch)


@needs_triton
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_changes_a_fact_and_a_key(
    edit: str, built: tuple[dict[str, Any], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, key = trace(program(tmp_path, *EDITS[edit]), monkeypatch)
    assert key != built[1]
    names = differences(facts, built[0], ("gpu",))
    assert [one.factor for one in names][:1] == ["triton_kernels"], names
    assert facts == json.loads(GOLDEN.read_text())[edit], "recorded with torch 2.13 and Triton 3.9"


@needs_triton
@pytest.mark.parametrize("change", SAME)
def test_changes_that_change_no_key_change_no_fact(
    change: str, built: tuple[dict[str, Any], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trace(program(tmp_path, *SAME[change]), monkeypatch) == built
    assert built[0] == json.loads(GOLDEN.read_text())["as built"]


@pytest.mark.parametrize("edit", EDITS)
def test_the_kernel_is_named_first(edit: str) -> None:
    golden = json.loads(GOLDEN.read_text())
    names = differences(golden[edit], golden["as built"], ("gpu",))
    assert [one.factor for one in names][:1] == ["triton_kernels"]
    assert names[0].mine.startswith("tuned " if edit == "configurations" else "scaled ")


def test_an_unreadable_kernel_is_reported_as_unknown() -> None:
    """The test uses the real structure of a launch, with an object that is no kernel."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table as table
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    indices = {
        "kernel_idx": table.add_kernel(object()),
        "constant_args_idx": table.add_constant_args({"BLOCK": 64, "hook": object()}),
    }
    event = {"grid": [(x, 1, 1)], "tma_descriptor_metadata": {}, "kwargs": {"x": x}}
    graph.call_function(triton_kernel_wrapper_mutation, (), {**indices, **event})
    assert list(user_kernels.describe_kernels(graph.nodes)) == [
        "kernel source unknown (BLOCK=64, hook=object, grid=*x1x1)"
    ]
    graph.call_function(triton_kernel_wrapper_mutation, (), {**indices, **event, "kernel_idx": 10**6})
    assert list(user_kernels.describe_kernels(graph.nodes))[1:] == ["unknown"]
    table.reset_table()


@pytest.mark.parametrize("event", [{}, {"fn": None, "repr": "k[]"}, {"fn": object(), "repr": None}])
def test_an_event_of_another_form_is_no_error(event: dict[str, Any]) -> None:
    requests = GraphRequests(RegisteredFunctions())
    requests.note_launch(event)
    assert requests.facts() == {}


@needs_triton
@pytest.mark.xfail(
    bool(TRITON) and TRITON < (3, 5),
    reason="Triton 3.4's own key lacks the values of a module's constants: its folder is no safe entry there",
    strict=True,
)
def test_an_eagerly_launched_kernel_is_a_fact(tmp_path: Path) -> None:
    """Triton's own code makes the event (`JITFunction._call_hook`)."""
    from triton.runtime.jit import JitFunctionInfo

    def requests_of_launch(*edit: str) -> Any:
        kernel = program(tmp_path, *edit).scaled
        requests = GraphRequests(RegisteredFunctions())
        launch = "scaled[num_warps=4, num_ctas=1](x)"
        requests.note_launch({"fn": JitFunctionInfo("module", "scaled", kernel), "repr": launch})
        return requests.facts()["triton_kernels"]

    assert requests_of_launch() == requests_of_launch(*SAME["another function beside it"])
    assert requests_of_launch() != requests_of_launch(*SAME["moved down"]), "Triton's key holds the line"
    assert all(
        requests_of_launch() != requests_of_launch(*EDITS[edit])
        for edit in ("body", "what it calls", "constant of the module")
    )
    assert requests_of_launch()[0].startswith("scaled source ") and requests_of_launch()[0].endswith(
        " [num_warps=4, num_ctas=1](x)"
    )


@needs_triton
def test_the_model_hash_includes_kernels_of_other_files(tmp_path: Path) -> None:
    def hashed(*edit: str) -> Any:
        kernels = program(tmp_path, *edit)

        class Service(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return kernels.forward(x)

        return model_hash(Service())

    assert hashed() == hashed(*SAME["moved down"])
    for edit in ("body", "what it calls", "constant of the module"):
        assert hashed() != hashed(*EDITS[edit]), edit


TUNED = """
import torch, triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": size}) for size in (64, 128)]

@triton.autotune(configs=CONFIGS, key=["n"], reset_to_zero=["out"])
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % 2 == 0})
@triton.jit
def doubled(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

KERNELS = {"doubled": doubled}

def launch(x):
    out = torch.empty_like(x)
    KERNELS["doubled"][(1,)](x, out, x.numel())
    return out
"""


@needs_triton
def test_what_a_tuner_has_measured_is_not_in_the_digest_and_what_it_does_to_a_launch_is() -> None:
    def digest(text: str, *, tuned: bool = False) -> str:
        module = ModuleType("tuned_program")
        linecache.cache["tuned_program.py"] = (len(text), None, text.splitlines(keepends=True), "")
        exec(compile(text, "tuned_program.py", "exec"), vars(module))
        if tuned:
            module.doubled.cache[8,] = module.doubled.best_config = module.doubled.configs[1]
            module.doubled.bench_time = 0.25
        followed = FollowedCode([module.launch], {})
        assert followed.unknown == "" and list(followed.kernels) == ["doubled"]
        return followed.digest_without("")

    assert digest(TUNED) == digest(TUNED, tuned=True)
    edits = [("* 2", "* 3"), ("% 2", "% 4"), ('reset_to_zero=["out"]', 'restore_value=["out"]'), ("64", "32")]
    assert len({digest(TUNED.replace(*edit)) for edit in [("", ""), *edits]}) == 1 + len(edits)
