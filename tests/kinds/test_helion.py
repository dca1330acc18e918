"""Test configurations of Helion without Helion: which files travel, what decides a fit, and what the hooks do
to functions of Helion's form. `tests/engines` has the real package."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cachesvc_client.hooks import counters, imports
from cachesvc_client.kinds.builds.flags import Doubt
from cachesvc_client.kinds.helion.kind import KIND, HelionState
from cachesvc_client.kinds.helion.made import Made, facts_of, search_of
from cachesvc_client.kinds.kind import KindState, RestoredFacts
from cachesvc_client.kinds.testing import Example, KindConformance
from cachesvc_client.wire.errors import CacheSvcError

KEY = "a1" * 32
PATH = f"cachesvc/{KEY}/{'b2' * 8}.json"
RECORD = Made('{"block_sizes": [8]}', "code", {"Helion": "1.5.1"}, {"autotune_effort": 1}).encode()


class TestConformance(KindConformance):
    kind = KIND
    examples = (Example(PATH, RECORD, "ours"),)
    others = (
        *(f"{KEY}.best_config", f"cachesvc/{KEY}.best_config", f"{PATH}.tmp", f"triton/0/{KEY}/x.cubin"),
        *(f"cachesvc/{KEY}/b2.json", f"cachesvc/{KEY}/../{KEY}/{'b2' * 8}.json", f"cachesvc/{PATH}"),
    )

    def use(self, state: KindState, root: Path) -> set[str]:
        assert isinstance(state, HelionState)
        assert (root / PATH).is_file()
        state._configurations.taken.add(PATH)
        return {PATH}

    def allowed(self, state: KindState) -> list[Path]:
        assert isinstance(state, HelionState)
        return state._configurations.allowed


# Things of Helion's form ------------------------------------------------------------------------


@dataclass
class Config:
    """A configuration. Helion's JSON of it is ``text``."""

    text: str

    @staticmethod
    def from_json(text: str) -> Config:
        return Config(json.dumps(json.loads(text)))

    def to_json(self) -> str:
        return self.text


@dataclass
class Settings:
    """Settings of a kernel: those that the kind reads, and some that decide."""

    autotune_effort: str = "quick"
    autotune_max_generations: int | None = None
    autotune_budget_seconds: int | None = None
    autotune_accuracy_check: bool = True
    autotune_log_level: int = 20
    pallas_interpret: bool = True
    autotune_baseline_fn: Any = None
    fast_math: bool = False


@dataclass
class Kernel:
    """A kernel with its settings. ``body``: a part of the code that Helion generates."""

    settings: Settings = field(default_factory=Settings)
    env: Any = field(
        default_factory=lambda: SimpleNamespace(
            backend=SimpleNamespace(name="pallas"),
            device=SimpleNamespace(type="cpu"),
            process_group_name=None,
        )
    )
    body: str = "sin"
    kernel: Any = field(default_factory=lambda: SimpleNamespace(name="add"))

    def to_triton_code(self, config: Config) -> str:
        return f"{self.body} {config.text}"


class Cache:
    """Has functions of the form of ``LocalAutotuneCache``, over a folder, through the hooks of a state."""

    def __init__(self, root: Path, state: HelionState, kernel: Kernel | None = None) -> None:
        self.root, self.state = root, state
        self.kernel = kernel or Kernel()
        self.args: Any = (1, 2)
        self.key = SimpleNamespace(stable_hash=lambda: KEY)
        self.read: list[Path] = []
        self.on_read: Callable[[], object] = lambda: None

    def _path(self) -> Path:
        answer = self.state._configurations.path_of(
            imports.Call(lambda: self.root / f"{KEY}.best_config", (), {})
        )
        assert isinstance(answer, Path)
        return answer

    def get(self, wait: Callable[[], object] = lambda: None) -> Config | None:
        def original(self: Cache) -> Config | None:
            self.read.append(self._path())
            self.on_read()
            try:
                return Config.from_json(json.loads(self._path().read_bytes())["config"])
            except (OSError, ValueError, KeyError):
                return None

        answer: Config | None = self.state._configurations.look_up(wait, imports.Call(original, (self,), {}))
        return answer

    def search(self) -> None:
        self.state._configurations.search(imports.Call(lambda _: "found", (self,), {}))

    def put(self, config: Config) -> None:
        def original(self: Cache, config: Config) -> None:
            self.root.mkdir(parents=True, exist_ok=True)
            self._path().write_text(json.dumps({"config": config.to_json()}))

        self.state._configurations.put(imports.Call(original, (self, config), {}))

    def autotune(self, config: str = '{"block_sizes": [8]}') -> Config:
        """Do what Helion does at the first call of a kernel."""
        answer = self.get()
        if answer is None:
            self.search()
            answer = Config(config)
            self.put(answer)
        return answer


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put what the kind reads of Helion and torch in the place of both."""
    config, helion, torch = (ModuleType(name) for name in ("helion.runtime.config", "helion", "torch"))
    vars(config).update(Config=Config)
    vars(helion).update(__version__="1.5.1")
    vars(torch).update(version=SimpleNamespace(hip=None))
    for module in (config, helion, torch):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delenv("HELION_AUTOTUNER", raising=False)


@pytest.fixture
def entry(tmp_path: Path) -> tuple[Path, list[str]]:
    """Return a folder with what a builder found and kept, and the paths there."""
    state, root = HelionState(), tmp_path / "entry"
    Cache(tmp_path / "builder", state).autotune()
    return root, sorted(state.used_files(root))


def restored(entry: tuple[Path, list[str]]) -> HelionState:
    state = HelionState()
    state.accept(*entry)
    return state


def reasons(state: HelionState) -> list[str]:
    return list(state.explain(RestoredFacts({}, [{}])))


# Look-ups ---------------------------------------------------------------------------------------


def test_what_was_found_is_taken_on_another_host_without_a_search(
    tmp_path: Path, entry: tuple[Path, list[str]]
) -> None:
    [path] = entry[1]
    assert KIND.rules.rule(path) is not None
    state, waits = restored(entry), []
    before = counters.counts["helion.searches"]
    cache = Cache(tmp_path / "service", state)
    assert cache.get(lambda: waits.append(1)) == Config('{"block_sizes": [8]}')
    assert cache.read == [entry[0] / path] and waits == [1]
    assert state.used_paths() == {path} == state.used_files(entry[0]) and state.activity().opened
    assert counters.counts["helion.searches"] == before and reasons(state) == []
    assert cache._path() == tmp_path / "service" / f"{KEY}.best_config", "only a look-up is led to the entry"


def _other_body(cache: Cache) -> None:
    cache.kernel.body = "cos"


def _fast(cache: Cache) -> None:
    cache.kernel.settings.fast_math = True


def _full(cache: Cache) -> None:
    cache.kernel.settings.autotune_effort = "full"


def _unknown_backend(cache: Cache) -> None:
    cache.kernel.env.backend.name = "cute"


def _on_a_tpu(cache: Cache) -> None:
    cache.kernel.settings.pallas_interpret = False


def _several_ranks(cache: Cache) -> None:
    cache.kernel.env.process_group_name = "0"


def _several_inputs(cache: Cache) -> None:
    cache.args = SimpleNamespace(cases=[])


def _checked_by_a_function(cache: Cache) -> None:
    cache.kernel.settings.autotune_baseline_fn = lambda x: x + 1


def _unchecked(cache: Cache) -> None:
    cache.kernel.settings.autotune_accuracy_check = False


def _other_release(_: Cache) -> None:
    vars(sys.modules["helion"])["__version__"] = "1.5.2"


def _other_algorithm(_: Cache) -> None:
    pytest.MonkeyPatch().setenv("HELION_AUTOTUNER", "PatternSearch")


def _on_rocm(_: Cache) -> None:
    sys.modules["torch"].version.hip = "6.4"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_other_body, "generates other code"),
        (_fast, "the setting fast_math is True here, and False there"),
        (_full, "less thorough (autotune_effort)"),
        (_unchecked, "autotune_accuracy_check is False here"),
        (_checked_by_a_function, "the setting autotune_baseline_fn"),
        (_unknown_backend, "backend cute"),
        (_on_a_tpu, "backend pallas"),
        (_several_ranks, "search together"),
        (_several_inputs, "several inputs"),
        (_other_release, "Helion is 1.5.2 here, and 1.5.1 there"),
        (_other_algorithm, "HELION_AUTOTUNER is PatternSearch here"),
        (_on_rocm, "ROCm"),
    ],
)
def test_a_difference_is_searched_for_and_the_report_says_why(
    tmp_path: Path,
    entry: tuple[Path, list[str]],
    change: Callable[[Cache], None],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HELION_AUTOTUNER", "")
    state = restored(entry)
    cache = Cache(tmp_path / "service", state)
    assert Cache(tmp_path / "other", restored(entry)).get() is not None
    change(cache)
    before = counters.counts["helion.searches"]
    cache.autotune()
    assert cache.read == [tmp_path / "service" / f"{KEY}.best_config"]
    assert counters.counts["helion.searches"] == before + 1 and state.used_paths() == set()
    [told] = reasons(state)
    assert told.startswith("Helion searched for a configuration of add: ") and reason in told


def test_a_more_thorough_search_serves_one_that_asks_for_less(tmp_path: Path) -> None:
    builder, root = HelionState(), tmp_path / "entry"
    Cache(tmp_path / "builder", builder, Kernel(Settings(autotune_effort="full"))).autotune()
    entry = root, sorted(builder.used_files(root))
    for settings in (Settings(), Settings(autotune_budget_seconds=60), Settings(autotune_max_generations=2)):
        assert Cache(tmp_path, restored(entry), Kernel(settings)).get() is not None


def test_a_limited_search_does_not_serve_one_without_a_limit(tmp_path: Path) -> None:
    builder, root = HelionState(), tmp_path / "entry"
    Cache(tmp_path / "builder", builder, Kernel(Settings(autotune_budget_seconds=60))).autotune()
    entry = root, sorted(builder.used_files(root))
    assert Cache(tmp_path, restored(entry)).get() is None
    assert Cache(tmp_path, restored(entry), Kernel(Settings(autotune_budget_seconds=90))).get() is None
    assert Cache(tmp_path, restored(entry), Kernel(Settings(autotune_budget_seconds=60))).get() is not None


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"cachesvc":{"format":2}}', b"\xff", b"1", RECORD[:50]]
)
def test_a_record_of_another_form_is_left_to_helion(
    tmp_path: Path, entry: tuple[Path, list[str]], data: bytes
) -> None:
    state = restored(entry)
    (entry[0] / entry[1][0]).write_bytes(data)
    assert Cache(tmp_path / "service", state).get() is None
    with pytest.raises((ValueError, TypeError, KeyError)):
        Made.decode(data)


def test_a_record_that_helion_refuses_is_looked_for_in_helions_own_folder(
    tmp_path: Path, entry: tuple[Path, list[str]]
) -> None:
    state = restored(entry)
    cache = Cache(tmp_path / "service", state)
    cache.on_read = lambda: (entry[0] / entry[1][0]).unlink(missing_ok=True)
    assert cache.get() is None and cache.read[-1] == tmp_path / "service" / f"{KEY}.best_config"
    cache.search()
    assert "Helion did not take the configuration" in reasons(state)[0] and state.used_paths() == set()


def test_an_error_of_a_strict_restore_reaches_helion(tmp_path: Path) -> None:
    def fail() -> None:
        raise CacheSvcError("not restored")

    with pytest.raises(CacheSvcError):
        Cache(tmp_path, HelionState()).get(fail)


# Records ----------------------------------------------------------------------------------------


def test_only_what_this_process_found_by_searching_is_kept(tmp_path: Path) -> None:
    """Helion's own folder, and its remote cache, hold what nobody vouches for."""
    state = HelionState()
    cache = Cache(tmp_path / "own", state)
    cache.put(Config("{}"))  # as Helion does with an answer of its remote cache
    assert cache.get() is not None, "Helion's own folder works as before"
    assert state.used_files(tmp_path / "root") == set()
    Cache(tmp_path / "other", state).autotune()
    assert len(state.used_files(tmp_path / "root")) == 1
    assert state.used_files(tmp_path / "elsewhere", left=True) == set()


def test_a_file_that_somebody_changed_in_helions_folder_does_not_change_the_record(tmp_path: Path) -> None:
    state, root = HelionState(), tmp_path / "root"
    cache = Cache(tmp_path / "own", state)
    cache.autotune()
    (tmp_path / "own" / f"{KEY}.best_config").write_text('{"config": "{\\"planted\\": 1}"}')
    [path] = state.used_files(root)
    assert b"planted" not in (root / path).read_bytes()


def test_the_process_that_compiles_over_tuning_results_searches_again(tmp_path: Path) -> None:
    first = HelionState()
    Cache(tmp_path / "own", first).autotune()
    second = HelionState()
    second.compile_again()
    Cache(tmp_path / "own", second).autotune()
    assert second.used_files(tmp_path / "root") == first.used_files(tmp_path / "root") != set()


def test_a_kernel_that_nobody_can_tell_is_not_kept(tmp_path: Path) -> None:
    state = HelionState()
    cache = Cache(tmp_path / "own", state)
    cache.kernel.settings.autotune_baseline_fn = SimpleNamespace().__init__
    cache.autotune()
    assert state.used_files(tmp_path / "root") == set()


def test_a_wrong_configuration_is_forgotten_and_taken_no_more(
    tmp_path: Path, entry: tuple[Path, list[str]]
) -> None:
    state = restored(entry)
    cache = Cache(tmp_path / "service", state)
    assert cache.get() is not None
    state.forget(entry[1], set())
    assert state.used_files(entry[0]) == set() and cache.get() is None


def test_functions_among_settings_are_told_apart_by_their_code() -> None:
    def texts(function: Any) -> str:
        return facts_of(Kernel(Settings(autotune_baseline_fn=function)))["the setting autotune_baseline_fn"]  # type: ignore[arg-type]

    def close(scale: float) -> Callable[[float], float]:
        return lambda value: value * scale

    assert texts(close(1.0)) == texts(close(1.0)) != texts(close(2.0))
    with pytest.raises(Doubt):
        texts(close(object()))  # type: ignore[arg-type]


def test_an_effort_that_nobody_knows_is_a_doubt() -> None:
    with pytest.raises(Doubt, match="heroic"):
        search_of(Settings(autotune_effort="heroic"))


def test_two_searches_are_counted_as_work() -> None:
    work = KIND.cost(
        counters.Observation(counts={"helion": {"searches": 2}}, seconds={"helion.searches": 3.0}), 0
    )
    assert work is not None and (work.compilations, work.tuning_runs, work.seconds) == (0, 2, 3.0)
