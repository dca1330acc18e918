"""What is added to PyTorch's keys, where, and what happens in a torch that has no place for it.

That no entry is restored under other settings is shown end to end in tests/versions/test_false_hits.py.
"""

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

from cachesvc_client.graphs import ambient, keys
from tests.e2e.harness import environment

CODECACHE, AUTOGRAD = (hook.module for hook in keys.SAFETY_HOOKS)


class Old:
    """The details of a version that holds none of these facts."""

    def __init__(self, gm: Any, example_inputs: Any) -> None:
        self.gm, self.example_inputs = gm, example_inputs


class New(Old):
    """Those of a version that holds all of them."""

    def __init__(self, gm: Any, example_inputs: Any) -> None:
        super().__init__(gm, example_inputs)
        self._record()

    def _record(self) -> None:
        self.default_dtype = torch.get_default_dtype()
        self.cpp_runtime_thread_count = torch.get_num_threads()
        self.var_to_hint_override: dict[str, int] = {}
        self.nested_inductor_config_patches = ()
        self.autocast_state = {"cpu": torch.bfloat16}


def graph(function: Any = torch.sin) -> Any:
    return torch.fx.symbolic_trace(lambda x: function(x))


def on(device: str) -> Any:
    return [torch.empty(2, device=device)]


def test_what_a_version_holds_already_is_not_added() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        details = New(graph(), on("cpu"))
        assert ambient.of_graph(details, details.gm) == {}
        assert ambient.of_autograd(details, details.gm) == {}


def test_what_a_version_lacks_is_added() -> None:
    details = Old(graph(), on("cpu"))
    with torch.autocast("cpu", torch.float16):
        assert ambient.of_autograd(details, details.gm) == {"autocast_state": {"cpu": "torch.float16"}}
    assert ambient.of_autograd(details, details.gm) == {}
    found = ambient.of_graph(details, details.gm)
    assert found == {"default_dtype": "torch.float32", "cpp_runtime_thread_count": torch.get_num_threads()}


def test_code_for_a_gpu_does_not_depend_on_the_threads_of_the_cpu() -> None:
    details = Old(graph(), on("meta"))
    assert ambient.of_graph(details, details.gm) == {"default_dtype": "torch.float32"}
    details.gm.graph.find_nodes(op="call_function", target=torch.sin)[0].meta["val"] = torch.empty(1)
    assert "cpp_runtime_thread_count" in ambient.of_graph(details, details.gm), "it computes on the CPU too"
    nothing_known = Old(graph(), [])
    assert "cpp_runtime_thread_count" in ambient.of_graph(nothing_known, nothing_known.gm)


def test_a_graph_that_enters_autocast_takes_the_dtype_that_is_set() -> None:
    def function(x: Any) -> Any:
        with torch.autocast("cpu"):
            return x @ x

    graphs = []
    torch.compile(function, backend=lambda gm, _: graphs.append(gm) or gm)(torch.ones(2, 2))
    [entered] = graphs
    found = ambient.of_autograd(Old(entered, on("cpu")), entered)
    assert found["ambient_autocast_dtypes"]["cpu"] == "torch.bfloat16"
    held = New(entered, on("cpu"))
    held.autocast_state = dict.fromkeys(torch._C._autocast_supported_devices())
    assert ambient.of_autograd(held, entered) == {}, "this version holds the dtypes of all devices"


def test_a_nested_region_with_options_meets_no_other_process() -> None:
    inner = graph()
    inner.meta["nested_region_config"] = object()
    outer = torch.fx.GraphModule({"inner": inner}, torch.fx.Graph())
    outer.add_submodule("inner", inner)
    first = ambient.of_graph(Old(outer, on("cpu")), outer)["nested_inductor_config_patches"]
    keys.nonce.cache_clear()
    assert ambient.of_graph(Old(outer, on("cpu")), outer)["nested_inductor_config_patches"] != first


def hooked(parts: keys.Parts, details: type = Old) -> Any:
    """Answers a copy of a details' class with ``parts`` put into what it makes."""
    module: Any = types.ModuleType("copy")
    setattr(module, keys._class_of(keys.GRAPH_KEY), type("Copy", (details,), {"__init__": details.__init__}))
    keys._install(keys.GRAPH_KEY, parts, module)
    return getattr(module, keys._class_of(keys.GRAPH_KEY))


def test_a_part_that_is_not_known_makes_a_key_of_this_process_alone() -> None:
    def fails(_: Any, __: Any) -> dict[str, Any]:
        raise AttributeError("PyTorch changed")

    made = hooked(fails)(graph(), [])
    assert made.cachesvc == keys.nonce("not known")


def test_arguments_may_come_by_name_and_what_pytorch_set_is_kept() -> None:
    def parts(_: Any, gm: Any) -> dict[str, Any]:
        return {"nodes": len(gm.graph.nodes), "gm": None}

    module = graph()
    made = hooked(parts)(example_inputs=[], gm=module)
    assert made.nodes == 3 and made.gm is module


# A torch without the hooks' places -------------------------------------------------------------


def torch_with(folder: Path, **sources: str) -> Path:
    """Writes a package whose modules of the safety hooks have these texts."""
    for name, source in sources.items():
        path = folder / "torch" / Path(*keys.SAFETY_HOOKS[name == "autograd"].module.split(".")[1:])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(source)
    return folder / "torch"


GRAPH = "class FxGraphHashDetails:\n    def __init__(self):\n        pass\n"
OTHER = "\nclass Other:\n    def __init__(self):\n        pass\n"
DERIVED = "class AOTAutogradCacheDetails(FxGraphHashDetails):\n    def __init__(\n        self\n    ):\n"


def test_a_torch_is_judged_by_its_sources(tmp_path: Path) -> None:
    assert keys.missing_in_source(Path(torch.__file__).parent) is None
    assert keys.missing_in_source(torch_with(tmp_path / "a", graph=GRAPH, autograd=DERIVED)) is None
    inherited = "class AOTAutogradCacheDetails(FxGraphHashDetails):\n    pass\n" + OTHER
    for number, (graph_key, autograd_key, lacking) in enumerate(
        [
            (GRAPH, inherited, keys.AUTOGRAD_KEY),
            (GRAPH.replace("HashDetails", "HashParts"), DERIVED, keys.GRAPH_KEY),
        ]
    ):
        folder = torch_with(tmp_path / str(number), graph=graph_key, autograd=autograd_key)
        reason = keys.missing_in_source(folder)
        assert reason is not None and reason.startswith(f"hook {lacking.name} is missing in this torch")
    assert keys.GRAPH_KEY.name in (keys.missing_in_source(tmp_path / "empty") or "")


def test_a_torch_without_a_hooks_place_is_refused_whatever_a_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cachesvc_client.environment import detect, releases

    here = detect.detect()
    assert detect.unsupported_reason(here, untested=True) is None
    monkeypatch.setattr(releases, "package", lambda _: torch_with(tmp_path, graph=GRAPH))
    reason = detect.unsupported_reason(here, untested=True)
    assert reason is not None and f"hook {keys.AUTOGRAD_KEY.name} is missing in this torch" in reason


def test_a_hook_that_is_not_in_place_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    ambient.install_hooks()
    for name in (CODECACHE, AUTOGRAD):
        importlib.import_module(name)
    assert keys.missing_here() is None
    module = types.ModuleType(CODECACHE)
    monkeypatch.setitem(sys.modules, CODECACHE, module)
    assert keys.GRAPH_KEY.name in (keys.missing_here() or "")
    module.FxGraphHashDetails = Old  # type: ignore[attr-defined]
    assert keys.GRAPH_KEY.name in (keys.missing_here() or "")
    monkeypatch.delitem(sys.modules, CODECACHE)
    assert keys.missing_here() is None, "it gets its hook when it is imported"


@pytest.mark.compiles
def test_keys_of_a_version_that_holds_these_facts_are_pytorchs_own(tmp_path: Path) -> None:
    """In fresh processes, byte for byte; this torch is 2.13 or later."""

    def looked_for(how: str) -> list[str]:
        program = str(Path(__file__).with_name("keys_program.py"))
        variables = {**environment(tmp_path / how), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, program, how], env=variables, capture_output=True, text=True, check=True
        )
        return list(json.loads(done.stdout.splitlines()[-1]))

    plain = looked_for("plain")
    assert looked_for("armed") == plain and len(plain) >= 10, plain
