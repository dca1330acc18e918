"""Test artifacts of vLLM without vLLM: which files travel, what the name of their folder holds, and what the
hooks give to functions of vLLM's form. `tests/engines` has the real engine."""

from __future__ import annotations

import enum
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cachesvc_client.hooks import imports
from cachesvc_client.kinds.kind import KindState, ProcessCallbacks, RestoredFacts, RestoredFiles
from cachesvc_client.kinds.testing import Example, KindConformance
from cachesvc_client.kinds.vllm import identity, model_infos
from cachesvc_client.kinds.vllm.identity import Doubt, describe, operators_digest, unknown_variables
from cachesvc_client.kinds.vllm.kind import KIND, VllmState
from cachesvc_client.kinds.vllm.rules import inside_of_torch_compile_cache
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import CacheSvcError

IDENTITY, HASH, SHORT = "0a" * 16, "b1" * 32, "c2" * 5
MODEL = f"{IDENTITY}/torch_aot_compile/{HASH}/rank_0_0/model"
INFO = f"modelinfos/{IDENTITY}/{HASH}/vllm-model_executor-models-llama-LlamaForCausalLM.json"
CLASSIC = f"{IDENTITY}/{SHORT}/rank_0_0/backbone"


class TestConformance(KindConformance):
    kind = KIND
    examples = (
        Example(MODEL, b"\x80\x04" + bytes(range(256)), last=True),
        Example(INFO, b'{"hash": "", "modelinfo": {}}'),
    )
    others = (
        *(f"{CLASSIC}/vllm_compile_cache.py", f"{CLASSIC}/computation_graph.py"),
        *(f"{CLASSIC}/cache_key_factors.json", f"{MODEL}.123.tmp"),
        *(f"torch_compile_cache/torch_aot_compile/{HASH}/rank_0_0/model", f"{IDENTITY}/dummy_cache/model"),
        *(f"modelinfos/{HASH}/x.json", f"modelinfos/{IDENTITY}/{HASH}/../x.json", f"{INFO}.tmp"),
        f"{IDENTITY}/torch_aot_compile/{HASH}/rank_\u0663_0/model",
        *(f"{IDENTITY}/torch_aot_compile/{HASH}/rank_0/model", f"{IDENTITY}/torch_aot_compile/{HASH}/model"),
        *(f"{IDENTITY}/torch_aot_compile/{HASH[:-1]}/rank_0_0/model", f"{CLASSIC}/../{SHORT}/model"),
    )

    def use(self, state: KindState, root: Path) -> set[str]:
        assert isinstance(state, VllmState)
        state._artifacts.accept(root, [MODEL])
        state._artifacts.loaded.add(MODEL)
        return {MODEL}

    def allowed(self, state: KindState) -> list[Path]:
        assert isinstance(state, VllmState)
        return state._artifacts.allowed


def test_a_rank_with_a_device_is_known() -> None:
    assert KIND.rules.rule(MODEL.replace("rank_0_0", "rank_3_1_dev2")) is not None


def test_the_place_of_a_path_is_what_follows_vllms_folder() -> None:
    inside = f"torch_aot_compile/{HASH}/rank_0_0/model"
    assert inside_of_torch_compile_cache(f"/home/x/torch_compile_cache/{inside}") == inside
    assert inside_of_torch_compile_cache(f"/own/cache/{inside}") == ""


# Identity -------------------------------------------------------------------------------------


class _Method(enum.Enum):
    EAGLE = 1


@dataclass
class _Lora:
    max_lora_rank: int = 16
    dtype: str = "auto"
    modules: list[str] = field(default_factory=lambda: ["q_proj"])
    rank: int = 0


def _model(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"multimodal_config": None, "hf_overrides": {}, **changes})


def _config(**changes: Any) -> SimpleNamespace:
    parts = {"lora_config": None, "speculative_config": None, "additional_config": {}}
    return SimpleNamespace(**{**parts, "model_config": _model(), **changes})


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand for what only vLLM knows: the names of its variables."""
    monkeypatch.setattr(identity, "_known_variables", lambda: ("VLLM_KNOWN",))
    monkeypatch.setattr(identity, "plugins", lambda: iter(()))


DIFFERENCES: dict[str, SimpleNamespace] = {
    "lora": _config(lora_config=_Lora()),
    "lora rank": _config(lora_config=_Lora(max_lora_rank=32)),
    "lora dtype": _config(lora_config=_Lora(dtype="bfloat16")),
    "lora modules": _config(lora_config=_Lora(modules=["v_proj"])),
    "speculative": _config(speculative_config={"method": "ngram", "num_speculative_tokens": 3}),
    "speculative tokens": _config(speculative_config={"method": "ngram", "num_speculative_tokens": 4}),
    "speculative method": _config(speculative_config={"method": _Method.EAGLE}),
    "additional": _config(additional_config={"a": 1}),
    "additional value": _config(additional_config={"a": 2}),
    "multimodal": _config(model_config=_model(multimodal_config={"limit": 1})),
    "multimodal value": _config(model_config=_model(multimodal_config={"limit": 2})),
    "overrides": _config(model_config=_model(hf_overrides={"x": 1})),
}


@pytest.mark.usefixtures("known")
def test_each_setting_that_vllms_hash_leaves_out_is_another_identity() -> None:
    names = [identity.identity(config, {}) for config in (_config(), *DIFFERENCES.values())]
    assert len(set(names)) == len(DIFFERENCES) + 1
    assert all(KIND.rules.rule(f"{name}/torch_aot_compile/{HASH}/rank_0_0/model") for name in names)


@pytest.mark.usefixtures("known")
def test_what_is_of_one_process_or_host_is_no_part_of_the_identity() -> None:
    first = {"VLLM_DIST_IDENT": "1", "HOME": "/a"}
    second = {"VLLM_DIST_IDENT": "2", "VLLM_KNOWN": "1"}
    names = [
        identity.identity(_config(lora_config=_Lora(rank=rank)), environ)
        for rank, environ in enumerate((first, second))
    ]
    assert names[0] == names[1]


@pytest.mark.usefixtures("known")
def test_variables_versions_operators_and_plugins_are_another_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [identity.identity(_config(), {}), identity.identity(_config(), {"VLLM_OF_A_PLUGIN": "1"})]
    with monkeypatch.context() as patch:
        patch.setattr(identity, "plugins", lambda: iter(["vllm.general_plugins mine mine 1"]))
        names.append(identity.identity(_config(), {}))
    with monkeypatch.context() as patch:
        patch.setattr(identity, "_schemas", lambda: iter(["mine::op(Tensor x) -> Tensor"]))
        names.append(identity.identity(_config(), {}))
    for package in ("vllm", "torch", "triton", "transformers", "flashinfer"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, SimpleNamespace(__version__="0.0.1"))
            patch.setattr(identity, "_schemas", lambda: iter(()))
            names.append(identity.identity(_config(), {}))
    assert len(set(names)) == len(names)


def test_a_value_of_a_variable_is_not_kept() -> None:
    [(name, text)] = unknown_variables({"VLLM_SECRET": "hunter2", "OTHER": "1"}, ())
    assert name == "VLLM_SECRET" and "hunter2" not in text


def test_operators_of_pytorch_are_its_versions_matter() -> None:
    assert operators_digest(["aten::add(Tensor a) -> Tensor"]) == operators_digest([])
    assert operators_digest(["mine::add(Tensor a) -> Tensor"]) != operators_digest([])


def test_what_has_no_stable_text_is_a_doubt() -> None:
    nested: list[Any] = []
    nested.append(nested)
    for value in (object(), lambda: 1, nested):
        with pytest.raises(Doubt):
            describe(value)


# Hooks ----------------------------------------------------------------------------------------


class Engine:
    """Stands for the functions of vLLM that are hooked, in their form, and says what they were called
    with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.own = folder / "torch_compile_cache" / "torch_aot_compile" / HASH / "rank_0_0" / "model"
        self.paths: list[str] = []
        self.failure = ""
        self.counter = SimpleNamespace(num_aot_artifacts_loaded=0)
        for name in ("vllm", "vllm.compilation", "vllm.compilation.counter"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules["vllm.compilation.counter"])["compilation_counter"] = self.counter

    def load(self, model: Any, aot_compilation_path: str) -> Any:
        """Do what ``_try_load_aot_compiled_fn`` of 0.32 does with a path."""
        self.paths.append(aot_compilation_path)
        if self.failure:
            logger = logging.getLogger("vllm.compilation.decorators")
            text = "Compiling model again due to a load failure from %s, reason: %s"
            logger.warning(text, aot_compilation_path, self.failure)
            return None
        if not Path(aot_compilation_path).exists():
            return None
        self.counter.num_aot_artifacts_loaded += 1
        return model


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(identity, "identity", lambda _: IDENTITY)
    return Engine(monkeypatch, tmp_path / "vllm")


@pytest.fixture
def state(tmp_path: Path) -> VllmState:
    state, root = VllmState(), tmp_path / "root"
    (root / MODEL).parent.mkdir(parents=True)
    (root / MODEL).write_bytes(b"verified")
    state.use_folder(root)
    return state


def _call(state: VllmState, engine: Engine, config: Any = None, **callbacks: Any) -> Any:
    asked = ProcessCallbacks(**{"before_compile": lambda: None, "launched": lambda _: None, **callbacks})
    model = SimpleNamespace(vllm_config=config)
    return state._artifacts.load_model(asked, imports.Call(engine.load, (model, str(engine.own)), {}))


def test_vllm_gets_the_path_of_a_verified_file_and_its_own_counter_counts_the_use(
    tmp_path: Path, state: VllmState, engine: Engine
) -> None:
    waits: list[str] = []
    state.accept(tmp_path / "root", [MODEL])
    loaded = _call(state, engine, before_compile=lambda: waits.append("wait"))
    assert loaded is not None and engine.paths == [str(tmp_path / "root" / MODEL)]
    assert waits == ["wait"] and state.used_paths() == {MODEL} == state.used_files(tmp_path / "root")
    assert list(state.explain(RestoredFacts({}, [{}]))) == []


def test_only_the_load_of_an_accepted_file_is_guarded(
    tmp_path: Path, state: VllmState, engine: Engine
) -> None:
    """What vLLM loads from its own folder is no revision's fault."""
    guarded: list[tuple[str, str, list[str]]] = []

    @contextmanager
    def loading(kind: str, path: str) -> Iterator[None]:
        before = list(engine.paths)
        yield
        guarded.append((kind, path, [path for path in engine.paths if path not in before]))

    assert _call(state, engine, files=RestoredFiles(loading=loading)) is None and not guarded
    state.accept(tmp_path / "root", [MODEL])
    assert _call(state, engine, files=RestoredFiles(loading=loading)) is not None
    assert guarded == [("vllm", MODEL, [str(tmp_path / "root" / MODEL)])]


def test_folders_of_a_user_are_no_part_of_vllms_hash(
    state: VllmState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM 0.26 hashes paths below the home, so that its own artifact does not fit another user's process."""
    factors = {
        "VLLM_CONFIG_ROOT": "/home/a/.config/vllm",
        "VLLM_API_KEY": "secret",
        "VLLM_USE_AOT_COMPILE": True,
    }
    envs = ModuleType("vllm.envs")
    vars(envs)["compile_factors"] = lambda: dict(factors)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.envs", envs)
    state.install_hooks(ProcessCallbacks(lambda: None, lambda _: None))
    assert envs.compile_factors() == {"VLLM_USE_AOT_COMPILE": True}


def test_a_file_that_no_revision_accounts_for_is_not_given_to_vllm(state: VllmState, engine: Engine) -> None:
    assert _call(state, engine) is None
    assert engine.paths == [str(engine.own)] and state.used_paths() == set()


def test_a_file_that_was_accepted_and_is_gone_is_not_given_to_vllm(
    tmp_path: Path, state: VllmState, engine: Engine
) -> None:
    state.accept(tmp_path / "root", [MODEL])
    (tmp_path / "root" / MODEL).unlink()
    assert _call(state, engine) is None and engine.paths == [str(engine.own)]


def test_a_load_that_fails_is_reported_in_vllms_words(
    tmp_path: Path, state: VllmState, engine: Engine
) -> None:
    state.accept(tmp_path / "root", [MODEL])
    engine.failure = "'function' object has no attribute 'finalize_loading'"
    assert _call(state, engine) is None and state.used_paths() == set()
    [reason] = state.explain(RestoredFacts({}, [{}]))
    assert "finalize_loading" in reason and str(tmp_path) not in reason
    assert list(state.explain(RestoredFacts({}, []))) == []


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (MODEL.replace(IDENTITY, "11" * 16), "settings differ that vLLM's hash leaves out"),
        (MODEL.replace("rank_0_0", "rank_1_0"), "other ranks"),
        (MODEL.replace(HASH, "22" * 32), "vLLM's own hash"),
    ],
)
def test_an_artifact_of_another_engine_is_not_given_and_the_report_says_what_differs(
    tmp_path: Path, state: VllmState, engine: Engine, other: str, words: str
) -> None:
    (tmp_path / "root" / other).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "root" / other).write_bytes(b"verified")
    state.accept(tmp_path / "root", [other])
    assert _call(state, engine) is None and engine.paths == [str(engine.own)]
    [reason] = state.explain(RestoredFacts({}, [{}]))
    assert words in reason


@pytest.mark.parametrize(
    ("built", "ranks", "words"),
    [
        (2, 1, "it was built for 2 ranks, and this engine has 1"),
        (1, 2, "it was built for 1 rank, and this engine has 2"),
        (2, 2, "vLLM's own hash"),
    ],
)
def test_an_artifact_for_another_number_of_ranks_is_not_given_and_the_report_says_so(
    tmp_path: Path, state: VllmState, engine: Engine, built: int, ranks: int, words: str
) -> None:
    other = [MODEL.replace(HASH, "22" * 32).replace("rank_0", f"rank_{rank}") for rank in range(built)]
    state.accept(tmp_path / "root", other)
    config = SimpleNamespace(parallel_config=SimpleNamespace(world_size=ranks))
    assert _call(state, engine, config) is None and engine.paths == [str(engine.own)]
    [reason] = state.explain(RestoredFacts({}, [{}]))
    assert words in reason


def test_what_vllm_wrote_is_captured_and_what_lay_there_before_is_not(
    tmp_path: Path, state: VllmState, engine: Engine
) -> None:
    engine.own.parent.mkdir(parents=True)
    engine.own.write_bytes(b"of an earlier process")
    engine.failure = "another torch"
    _call(state, engine)
    assert state.used_files(tmp_path / "root") == set()
    engine.own.unlink()
    engine.own.write_bytes(b"of this process")
    assert state.used_files(tmp_path / "root", left=True) == set()
    assert state.used_files(tmp_path / "root") == {MODEL}
    assert (tmp_path / "root" / MODEL).read_bytes() == b"of this process"


def test_what_another_process_wrote_over_it_is_not_of_this_process(
    tmp_path: Path, state: VllmState, engine: Engine
) -> None:
    """Processes of one user share vLLM's folder, and a signature covers what this one compiled."""

    class Model:
        vllm_config = None
        _aot_compilation_path = str(engine.own)

        def save_aot_compiled_function(self) -> None:
            engine.own.write_bytes(b"of this process")

    engine.own.parent.mkdir(parents=True)
    asked = ProcessCallbacks(lambda: None, lambda _: None)
    for model in (Model(), Model()):
        state._artifacts.load_model(asked, imports.Call(engine.load, (model, str(engine.own)), {}))
    root = tmp_path / "root"
    engine.own.write_bytes(b"of another process")
    assert state.used_files(root) == {MODEL} and state.made_files(root) == {}
    model.save_aot_compiled_function()
    assert state.made_files(root) == {MODEL: Digest.of(b"of this process")}
    engine.own.write_bytes(b"of another process, again")
    assert state.used_files(root) == {MODEL}
    assert state.made_files(root)[MODEL] != Digest.of((root / MODEL).read_bytes())


def test_a_strict_failure_reaches_vllm(state: VllmState, engine: Engine) -> None:
    def fail() -> None:
        raise CacheSvcError("not restored")

    with pytest.raises(CacheSvcError):
        _call(state, engine, before_compile=fail)
    assert engine.paths == []


# Descriptions of models ------------------------------------------------------------------------


class Registry:
    """Stands for the module of vLLM that registers models, with the methods of 0.26 and 0.32."""

    NAME = "vllm.model_executor.models.registry"
    FILE = Path(INFO).name

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        registry = self
        self.folder = folder

        class _LazyRegisteredModel:
            @staticmethod
            def _get_cache_dir() -> Path:
                return registry.folder

            def _get_cache_filename(self) -> str:
                return registry.FILE

            def _load_modelinfo_from_cache(self, module_hash: str) -> Any:
                try:
                    content = json.loads((self._get_cache_dir() / self._get_cache_filename()).read_text())
                except FileNotFoundError:
                    return None
                return content["modelinfo"] if content["hash"] == module_hash else None

            def load_model_cls(self) -> type:
                return Registry

        module = ModuleType(self.NAME)
        vars(module)["_LazyRegisteredModel"] = _LazyRegisteredModel
        for name in ("vllm", "vllm.model_executor", "vllm.model_executor.models"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules["vllm"])["__version__"] = "0.26.0"
        monkeypatch.setitem(sys.modules, self.NAME, module)
        self.model = _LazyRegisteredModel()

    def write(self, path: Path, text: str, digest: str = HASH) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"hash": digest, "modelinfo": text}))


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: VllmState) -> Iterator[Registry]:
    monkeypatch.setattr(model_infos, "plugins", lambda: iter(()))
    registry = Registry(monkeypatch, tmp_path / "vllm" / "modelinfos")
    state.install_hooks(ProcessCallbacks(lambda: None, lambda _: None))
    yield registry
    imports.disarm()


def _info_path(digest: str = HASH) -> str:
    return f"modelinfos/{model_infos._version()}/{digest}/{Registry.FILE}"


def test_a_description_comes_from_an_entry_where_vllm_has_none(
    tmp_path: Path, state: VllmState, models: Registry
) -> None:
    root, path = tmp_path / "root", _info_path()
    models.write(root / path, "of the entry")
    assert models.model._load_modelinfo_from_cache(HASH) is None, "nothing is accepted yet"
    state.accept(root, [path])
    assert models.model._load_modelinfo_from_cache(HASH) == "of the entry"
    assert state.handed() == {path} and state.used_paths() == set()
    assert models.model._load_modelinfo_from_cache("22" * 32) is None, "the source of the class is another"
    models.write(models.folder / models.FILE, "vLLM's own")
    assert models.model._load_modelinfo_from_cache(HASH) == "vLLM's own"
    state.leave_folder()
    (models.folder / models.FILE).unlink()
    assert models.model._load_modelinfo_from_cache(HASH) is None


def test_the_same_source_under_another_version_or_plugin_has_another_description(
    tmp_path: Path, state: VllmState, models: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is over the file of the class, and the bases of the class are in other files."""
    root, path = tmp_path / "root", _info_path()
    models.write(root / path, "of the entry")
    state.accept(root, [path])
    with monkeypatch.context() as patch:
        patch.setattr(model_infos, "plugins", lambda: iter(["vllm.general_plugins mine mine 1"]))
        assert models.model._load_modelinfo_from_cache(HASH) is None
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.27.0")
    assert models.model._load_modelinfo_from_cache(HASH) is None


def test_the_description_of_a_class_that_was_loaded_is_captured(
    tmp_path: Path, state: VllmState, models: Registry
) -> None:
    root, path = tmp_path / "root", _info_path()
    models.write(models.folder / models.FILE, "written by the API server")
    assert state.used_files(root) == set(), "no class was loaded"
    assert models.model.load_model_cls() is Registry
    assert state.used_files(root, left=True) == set()
    assert state.used_files(root) == {path}
    assert json.loads((root / path).read_text())["modelinfo"] == "written by the API server"


def test_a_restored_description_stays_in_what_a_replay_captures(
    tmp_path: Path, state: VllmState, models: Registry
) -> None:
    root, path = tmp_path / "root", _info_path()
    models.write(root / path, "of the entry")
    state.accept(root, [path])
    assert state.used_files(root) == set()
    models.model.load_model_cls()
    assert state.used_files(root) == {path}
    state.forget([path], [])
    assert state.used_files(root) == set()


@pytest.mark.parametrize("content", ["", "[]", '{"hash": 1}', '{"hash": "../../x"}', "x" * (1 << 17)])
def test_a_description_that_is_none_is_not_captured(
    tmp_path: Path, state: VllmState, models: Registry, content: str
) -> None:
    models.folder.mkdir(parents=True)
    (models.folder / models.FILE).write_text(content)
    models.model.load_model_cls()
    assert state.used_files(tmp_path / "root") == set()


# The ranks of an engine ----------------------------------------------------------------------------


class Workers:
    """Is vLLM's wrapper of a worker, as far as the kind reads it (0.26.0 and 0.32.0)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[dict[str, Any]] = []
        started = self.started

        class WorkerWrapperBase:
            def __init__(self, rpc_rank: int = 0) -> None:
                self.rpc_rank = rpc_rank

            def init_worker(self, all_kwargs: list[dict[str, Any]]) -> None:
                started.append(all_kwargs[self.rpc_rank])

        self.wrapper = WorkerWrapperBase
        module = ModuleType("vllm.v1.worker.worker_base")
        vars(module)["WorkerWrapperBase"] = WorkerWrapperBase
        for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)

    def start(self, rank: int, **parallel: Any) -> None:
        """Start the worker of a rank, by default of two on this node."""
        facts = {"world_size": 2, "local_world_size": 2, "data_parallel_size": 1}
        config = SimpleNamespace(**{**facts, "distributed_executor_backend": "mp", **parallel})
        arguments = {"rank": rank, "distributed_init_method": "tcp://127.0.0.1:1"}
        every: list[dict[str, Any]] = [{}, {}]
        every[rank] = {**arguments, "vllm_config": SimpleNamespace(parallel_config=config)}
        self.wrapper(rank).init_worker(every)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Workers, list[tuple[Any, ...]]]]:
    workers, ranks = Workers(monkeypatch), []
    VllmState().install_hooks(
        ProcessCallbacks(lambda: None, lambda _: None, joined=lambda *one: ranks.append(one))
    )
    yield workers, ranks
    imports.disarm()


def test_a_worker_of_several_ranks_on_one_node_is_known_before_it_starts(joined: Any) -> None:
    workers, ranks = joined
    workers.start(1)
    assert ranks == [(1, 2, ["tcp://127.0.0.1:1"])]
    assert len(workers.started) == 1


@pytest.mark.parametrize(
    "parallel",
    [
        {"world_size": 1, "local_world_size": 1, "distributed_executor_backend": "uni"},
        {"distributed_executor_backend": "ray"},
        {"distributed_executor_backend": "external_launcher"},
        {"local_world_size": 1},
        {"data_parallel_size": 2},
    ],
)
def test_ranks_of_which_some_may_be_elsewhere_make_no_job(joined: Any, parallel: dict[str, Any]) -> None:
    """Nobody would come to vote for a rank of another node, and the others would wait."""
    workers, ranks = joined
    workers.start(0, **parallel)
    assert ranks == [] and len(workers.started) == 1


def test_a_vllm_that_tells_the_rank_in_another_way_starts_as_without_us(joined: Any) -> None:
    workers, ranks = joined
    workers.wrapper(0).init_worker([{"rank": 0}])
    assert ranks == [] and workers.started == [{"rank": 0}]
