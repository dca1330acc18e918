"""Test what the hooks add to PyTorch's keys, where they add it, and what happens in a torch without a place
for it.

tests/versions/test_false_hits.py shows end to end that no entry is restored under other settings."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config
from torch.utils.weak import WeakIdKeyDictionary

from cachesvc_client.graphs import ambient, attention, keys
from tests.e2e.harness import SCALAR, environment
from tests.releases import TORCH

CODECACHE, AUTOGRAD = (hook.module for hook in keys.SAFETY_HOOKS)


class Old:
    """Stands for the details of a version whose keys hold none of these facts."""

    def __init__(self, gm: Any, example_inputs: Any) -> None:
        self.gm, self.example_inputs = gm, example_inputs


class New(Old):
    """Stands for the details of a version whose keys hold all of these facts."""

    def __init__(self, gm: Any, example_inputs: Any) -> None:
        super().__init__(gm, example_inputs)
        self._record()

    def _record(self) -> None:
        self.default_dtype = torch.get_default_dtype()
        self.cpp_runtime_thread_count = torch.get_num_threads()
        self.var_to_hint_override: dict[str, int] = {}
        self.nested_inductor_config_patches = ()
        self.autocast_state = {"cpu": torch.bfloat16}
        self.inductor_config_comms: dict[str, Any] = {}
        self.compile_on_one_rank = False
        self.joint_custom_pre_pass = self.joint_custom_post_pass = self._post_fusion_custom_pass = None
        self.sac_context_fn_hashes: list[str] = []
        self.region_activation_memory_budget_annotations = ()


def graph(function: Any = torch.sin) -> Any:
    return torch.fx.symbolic_trace(lambda x: function(x))


def graph_on(device: str) -> Any:
    return [torch.empty(2, device=device)]


def test_facts_that_the_keys_of_a_version_hold_are_not_added() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        details = New(graph(), graph_on("cpu"))
        assert ambient.of_graph(details, details.gm) == {}
        assert ambient.of_autograd(details, details.gm) == {}


def test_facts_that_the_keys_of_a_version_lack_are_added() -> None:
    details = Old(graph(), graph_on("cpu"))
    with torch.autocast("cpu", torch.float16):
        assert ambient.of_autograd(details, details.gm) == {"autocast_state": {"cpu": "torch.float16"}}
    assert ambient.of_autograd(details, details.gm) == {}
    parts = ambient.of_graph(details, details.gm)
    assert parts == {"default_dtype": "torch.float32", "cpp_runtime_thread_count": torch.get_num_threads()}


def test_code_for_a_gpu_does_not_depend_on_the_threads_of_the_cpu() -> None:
    details = Old(graph(), graph_on("meta"))
    assert ambient.of_graph(details, details.gm) == {"default_dtype": "torch.float32"}
    details.gm.graph.find_nodes(op="call_function", target=torch.sin)[0].meta["val"] = torch.empty(1)
    assert "cpp_runtime_thread_count" in ambient.of_graph(details, details.gm), (
        "the graph computes on the CPU too"
    )
    nothing_known = Old(graph(), [])
    assert "cpp_runtime_thread_count" in ambient.of_graph(nothing_known, nothing_known.gm)


def test_a_graph_that_enters_autocast_has_the_current_dtype_in_its_key() -> None:
    def function(x: Any) -> Any:
        with torch.autocast("cpu"):
            return x @ x

    graphs = []
    torch.compile(function, backend=lambda gm, _: graphs.append(gm) or gm)(torch.ones(2, 2))
    [entered] = graphs
    parts = ambient.of_autograd(Old(entered, graph_on("cpu")), entered)
    assert parts["ambient_autocast_dtypes"]["cpu"] == "torch.bfloat16"
    if TORCH < (2, 9):
        return  # 2.8 does not say which devices it supports, so the parts are always added there
    complete = New(entered, graph_on("cpu"))
    complete.autocast_state = dict.fromkeys(torch._C._autocast_supported_devices())
    assert ambient.of_autograd(complete, entered) == {}, "this version holds the dtypes of all devices"


@pytest.mark.parametrize("function", [torch.nn.functional.scaled_dot_product_attention, torch.softmax])
def test_a_graph_with_attention_has_the_allowed_backends_in_its_key(function: Any) -> None:
    traced = torch.fx.Graph()
    traced.call_function(function, (traced.placeholder("x"),))
    details = New(torch.fx.GraphModule({}, traced), graph_on("cpu"))
    first = ambient.of_autograd(details, details.gm)["attention_backends"]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert ambient.of_autograd(details, details.gm)["attention_backends"] != first
    assert ambient.of_autograd(details, details.gm)["attention_backends"] == first


def test_the_order_of_attention_kernels_is_settled_before_it_is_in_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the key of a process that called attention before is another. A GPU shows it:
    `benchmarks/gpu/false_hits.py`, "attention before"."""
    events: list[str] = []
    monkeypatch.setattr(attention, "settle_attention_order", lambda: events.append("settled"))
    monkeypatch.setattr(attention, "backend_getters", lambda: events.append("read") or ())
    for function in (torch.softmax, torch.relu):
        traced = torch.fx.Graph()
        traced.call_function(function, (traced.placeholder("x"),))
        details = New(torch.fx.GraphModule({}, traced), graph_on("cpu"))
        ambient.of_autograd(details, details.gm)
    assert events == ["settled", "read"], "not for a graph without a softmax"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_order_that_cannot_be_settled_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    attention._choose_attention.cache_clear()
    before = {name: getattr(torch._C, name)() for name in attention.backend_getters()}
    attention.settle_attention_order()
    assert {name: getattr(torch._C, name)() for name in attention.backend_getters()} == before
    attention._choose_attention.cache_clear()


def test_hints_of_sizes_are_read_from_the_tensors_where_pytorch_keeps_them_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So in torch 2.9. `benchmarks/gpu/false_hits.py` compiles with two hints, on every version."""
    plain, hinted = torch.ones(2), torch.ones(3)
    hinted._dynamo_hint_overrides = {1: 512, 0: 64}
    describer = types.SimpleNamespace(lookup_tensor=WeakIdKeyDictionary({plain: 0, hinted: 1}))
    converter = types.SimpleNamespace(meta_converter=types.SimpleNamespace(describer=describer))
    mode = types.SimpleNamespace(fake_tensor_converter=converter, shape_env=types.SimpleNamespace())
    context = types.SimpleNamespace(fake_mode=mode)
    monkeypatch.setattr(torch._guards.TracingContext, "try_get", staticmethod(lambda: context))
    details = Old(graph(), graph_on("cpu"))
    assert ambient.of_graph(details, graph())["var_to_hint_override"] == {"1[0]": 64, "1[1]": 512}
    mode.shape_env.var_to_hint_override = {}
    assert "var_to_hint_override" not in ambient.of_graph(details, graph())


def test_a_graph_without_metadata_has_no_nested_options() -> None:
    """Torch 2.8 makes such graphs of a Llama. A part that cannot be worked out is a miss at each start."""
    traced = graph()
    traced.meta = None
    parts = ambient.of_graph(Old(traced, graph_on("cpu")), traced)
    assert "nested_inductor_config_patches" not in parts


def test_a_nested_region_with_options_has_a_key_of_this_process_alone() -> None:
    inner = graph()
    inner.meta["nested_region_config"] = object()
    outer = torch.fx.GraphModule({"inner": inner}, torch.fx.Graph())
    outer.add_submodule("inner", inner)
    first = ambient.of_graph(Old(outer, graph_on("cpu")), outer)["nested_inductor_config_patches"]
    keys.nonce.cache_clear()
    assert ambient.of_graph(Old(outer, graph_on("cpu")), outer)["nested_inductor_config_patches"] != first


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process the third of a job, as far as it is asked."""
    import torch.distributed._functional_collectives  # registers the operators

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: 2)


def of_graph(details: type[Old], target: Any = None, inputs: Any = ()) -> dict[str, Any]:
    """Return the parts of a graph that calls one function, by default a collective."""
    traced = torch.fx.Graph()
    traced.call_function(target or torch.ops._c10d_functional.wait_tensor, (traced.placeholder("x"),))
    module = torch.fx.GraphModule({}, traced)
    parts = ambient.of_graph(details(module, [*graph_on("meta"), *inputs]), module)
    return {name: value for name, value in parts.items() if name != "default_dtype"}


@pytest.mark.usefixtures("job")
def test_the_rank_is_in_the_key_where_a_pass_writes_it_into_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_graph(New) == {}
    if hasattr(config, "bucket_all_gathers_fx"):  # not in 2.8
        with config.patch(bucket_all_gathers_fx="all"):
            assert of_graph(New) == {"rank": 2}
            monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: 3)
            assert of_graph(New) == {"rank": 3}
    if hasattr(config, "aten_distributed_optimizations"):
        with config.patch({"aten_distributed_optimizations.enable_overlap_scheduling": True}):
            assert "rank" in of_graph(New)
    with config.patch(post_grad_custom_pre_pass=len):
        assert "rank" in of_graph(New)


@pytest.mark.usefixtures("job")
def test_a_graph_that_calls_no_other_rank_has_the_key_of_a_process_alone() -> None:
    """So a service of several ranks hits what a builder of one process compiled."""

    class Distributed:
        _local_tensor = torch.empty(1)

    with config.patch(post_grad_custom_pre_pass=len):
        assert of_graph(Old, torch.sin) == {}
        assert "rank" in of_graph(Old, torch.sin, [Distributed()])
        assert "rank" in of_graph(Old, torch.ops._c10d_functional.wait_tensor.default)


def test_a_process_alone_has_no_rank_in_its_keys() -> None:
    with config.patch(post_grad_custom_pre_pass=len):
        assert of_graph(New) == of_graph(Old) == {}


@pytest.mark.usefixtures("job")
@pytest.mark.skipif(TORCH < (2, 9), reason="has no such settings")
def test_settings_for_collectives_are_in_the_key_of_a_job() -> None:
    from torch._inductor import config_comms

    first = of_graph(Old)["inductor_config_comms"]
    assert " at 0x" not in first, "an address differs in each process"
    settings = config_comms.get_config_copy()
    name = min(name for name, value in settings.items() if isinstance(value, bool))
    with config_comms.patch({name: not settings[name]}):  # type: ignore[attr-defined]
        assert of_graph(Old)["inductor_config_comms"] != first
    assert of_graph(Old)["inductor_config_comms"] == first


@pytest.mark.usefixtures("job")
@pytest.mark.skipif(TORCH < (2, 11), reason="has no such setting")
def test_code_for_any_rank_has_another_key() -> None:
    import torch.distributed.config as settings

    assert "compile_on_one_rank" not in of_graph(Old)
    with settings.patch(compile_on_one_rank=True):  # type: ignore[attr-defined]
        assert of_graph(Old)["compile_on_one_rank"] is True
        assert of_graph(New) == {}


def test_the_code_of_a_pass_is_in_the_key() -> None:
    class Named:
        def __call__(self, graph: Any) -> None: ...
        def uuid(self) -> str:
            return "version 7"

    found = []
    for one in (Named(), lambda graph: graph.lint(), lambda graph: graph.eliminate_dead_code()):
        with config.patch(joint_custom_post_pass=one):
            [text] = of_graph(Old)["custom_passes"]
            assert of_graph(New) == {}
        found.append(text)
    assert found[0] == "joint_custom_post_pass is version 7" and len(set(found)) == 3


def test_constants_in_pinned_memory_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = torch.fx.Graph()
    traced.output((traced.get_attr("pinned"), traced.get_attr("plain")))
    constants = {"pinned": torch.ones(2), "plain": torch.ones(3)}
    module = torch.fx.GraphModule(constants, traced)
    details = New(module, graph_on("cpu"))
    asked = []
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda one: asked.append(one) or len(one) == 2)
    assert ambient.of_graph(details, module) == {} and not asked, "asking would begin to use a GPU"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert ambient.of_graph(details, module) == {"pinned_constants": ["pinned"]}


def test_what_a_backward_may_overwrite_is_in_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    details: Any = New(graph(), graph_on("cpu"))

    def part_for(donated: Any) -> Any:
        context = types.SimpleNamespace(fw_metadata=types.SimpleNamespace(bw_donated_idxs=donated))
        monkeypatch.setattr(torch._guards.TracingContext, "try_get", lambda: context)
        return ambient.of_graph(details, details.gm)

    assert part_for([0]) == {}, "a forward overwrites nothing that it saves"
    details.fx_kwargs = {"is_backward": True}
    found = [part_for(donated)["donated_buffers"] for donated in ([0], [0, 1], [], None)]
    assert found == ["[0]", "[0, 1]", "[]", "None"]
    monkeypatch.setattr(torch._guards.TracingContext, "try_get", lambda: None)
    assert ambient.of_graph(details, details.gm) == {"donated_buffers": "None"}


def test_outputs_that_no_caller_gets_are_in_the_key() -> None:
    traced = torch.fx.symbolic_trace(lambda x: (x.sin(), None, x.cos()))
    details, output = New(traced, []), next(iter(reversed(traced.graph.nodes)))
    assert ambient.of_graph(details, traced) == {}
    output.meta["user_visible_output_idxs"] = [0]
    assert ambient.of_graph(details, traced) == {"hidden_outputs": [2]}
    output.meta["user_visible_output_idxs"] = [0, 2]
    assert ambient.of_graph(details, traced) == {}, "inference has PyTorch's own key"


@pytest.mark.compiles
def test_a_backward_of_another_model_overwrites_no_output(tmp_path: Path) -> None:
    """Both backwards are one graph. PyTorch alone reuses the code, and the second model's output changes."""
    program = str(Path(__file__).with_name("donated_program.py"))
    variables = {**environment(tmp_path), **SCALAR, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, program], env=variables, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert json.loads(result.stdout.splitlines()[-1]) == {
        "backward of the first model overwrites": True,
        "output of the second model changed": False,
        "second backward equals the first": True,
    }


def test_the_device_of_a_distributed_tensor_is_in_the_key_if_its_hash_lacks_it() -> None:
    class Distributed:
        def __init__(self, device: str) -> None:
            self._local_tensor = torch.empty(1, device=device)

        def _stable_hash_for_caching(self) -> str:
            return "the same on all ranks"

    class Later(Distributed):
        def _stable_hash_for_caching(self) -> str:
            return str(self._local_tensor.device)

    def parts(*inputs: Any) -> dict[str, Any]:
        return ambient.of_autograd(New(graph(), list(inputs)), graph())

    assert parts(Distributed("cpu")) == {"local_devices": ["cpu"]} != parts(Distributed("meta"))
    assert parts(Later("cpu"), torch.empty(1)) == {}


@pytest.mark.skipif(TORCH < (2, 11), reason="a graph with such a tensor has another key in each process")
def test_which_versions_leave_the_device_of_a_distributed_tensor_out() -> None:
    from torch.distributed.tensor import DTensor

    hash_of = getattr(DTensor, "_stable_hash_for_caching", None)
    lacks = hash_of is not None and "_local_tensor" not in hash_of.__code__.co_names
    assert lacks is (TORCH[:2] in ((2, 12), (2, 13)))


def test_what_a_checkpoint_saves_is_in_the_key() -> None:
    """From 2.11 on PyTorch's key has the hash that such a function has, and no key if it has none."""
    inner = graph()
    outer = torch.fx.GraphModule({"inner": inner}, torch.fx.Graph())
    outer.add_submodule("inner", inner)
    assert ambient.of_autograd(Old(outer, []), outer) == {}
    inner.meta["_checkpoint_context_fn"] = context = lambda: None
    assert ambient.of_autograd(New(outer, []), outer) == {}
    first = ambient.of_autograd(Old(outer, []), outer)["sac_context_fn_hashes"]
    keys.nonce.cache_clear()
    assert ambient.of_autograd(Old(outer, []), outer)["sac_context_fn_hashes"] != first
    context.cache_hash = "keeps products"  # type: ignore[attr-defined]
    assert ambient.of_autograd(Old(outer, []), outer)["sac_context_fn_hashes"] == ["keeps products"]


@pytest.mark.skipif(TORCH < (2, 13), reason="has no such regions")
def test_the_memory_budget_of_a_region_is_in_the_key_if_its_first_input_is_made_outside() -> None:
    graphs = []

    def traced(budget: float) -> Any:
        def function(x: Any, y: Any) -> Any:
            rows = x.shape[0]
            with torch.autograd.graph.region_activation_memory_budget(budget):
                return (x @ y).sin() * rows

        torch._dynamo.reset()
        inputs = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
        torch.compile(function, backend=lambda gm, _: graphs.append(gm) or gm)(*inputs)
        return graphs[-1]

    low, high = (ambient.of_autograd(Old(one, []), one) for one in (traced(0.25), traced(0.75)))
    first_node = next(iter(graphs[-1].graph.nodes))
    assert not first_node.meta.get("custom"), "PyTorch 2.13 has in its key what this node says"
    name = "region_activation_memory_budget_annotations"
    assert low[name] and low[name] != high[name]
    assert ambient.of_autograd(New(graphs[-1], []), graphs[-1]) == {}


def with_parts(parts: keys.Parts, details: type = Old) -> Any:
    """Return a copy of a details' class that puts ``parts`` into the details that it makes."""
    module: Any = types.ModuleType("copy")
    setattr(module, keys._class_of(keys.GRAPH_KEY), type("Copy", (details,), {"__init__": details.__init__}))
    keys._install(keys.GRAPH_KEY, parts, module)
    return getattr(module, keys._class_of(keys.GRAPH_KEY))


def test_an_unknown_part_makes_a_key_of_this_compile_alone() -> None:
    def fails(_: Any, __: Any) -> dict[str, Any]:
        raise AttributeError("PyTorch changed")

    first, second = (with_parts(fails)(graph(), []).cachesvc for _ in range(2))
    assert first.startswith("not known (")
    assert first != second, "the setting that is not known may have changed between the two"


def test_arguments_may_be_passed_by_name_and_pytorchs_values_are_kept() -> None:
    def parts(_: Any, gm: Any) -> dict[str, Any]:
        return {"nodes": len(gm.graph.nodes), "gm": None}

    module = graph()
    result = with_parts(parts)(example_inputs=[], gm=module)
    assert result.nodes == 3 and result.gm is module


# A torch without the hooks' places -------------------------------------------------------------


def test_a_hook_that_is_not_in_place_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    ambient.install_hooks(lambda: None)
    for name in (CODECACHE, AUTOGRAD):
        importlib.import_module(name)
    assert keys.missing_here() is None
    module = types.ModuleType(CODECACHE)
    monkeypatch.setitem(sys.modules, CODECACHE, module)
    assert keys.GRAPH_KEY.name in (keys.missing_here() or "")
    module.FxGraphHashDetails = Old  # type: ignore[attr-defined]
    assert keys.GRAPH_KEY.name in (keys.missing_here() or "")
    monkeypatch.delitem(sys.modules, CODECACHE)
    assert keys.missing_here() is None, "the module gets its hook when it is imported"


@pytest.mark.compiles
@pytest.mark.skipif(TORCH < (2, 13), reason="cachesvc adds to the keys of earlier versions")
def test_keys_of_a_version_that_holds_these_facts_are_pytorchs_own(tmp_path: Path) -> None:
    """The keys are computed in fresh processes and compared byte for byte.

    A graph that enters autocast by itself and names no dtype has one key under both dtypes in 2.14, so
    cachesvc adds the dtype. 2.13 keeps such a graph out of this cache, and 2.15 has the dtype in its key.
    """

    def looked_for(how: str) -> dict[str, list[str]]:
        program = str(Path(__file__).with_name("keys_program.py"))
        variables = {**environment(tmp_path / how), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
        result = subprocess.run(
            [sys.executable, program, how], env=variables, capture_output=True, text=True, check=True
        )
        return dict(json.loads(result.stdout.splitlines()[-1]))

    plain, armed = looked_for("plain"), looked_for("armed")
    assert armed["function"] == plain["function"] and len(plain["function"]) >= 7, plain
    assert (armed["inside"] == plain["inside"]) is (TORCH[:2] != (2, 14)), (armed, plain)
    assert len(plain["inside"]) >= 3, plain
