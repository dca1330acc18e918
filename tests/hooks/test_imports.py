"""Test hooks on imports: an import behaves as it does without hooks, whatever the hooks do."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import itertools
import logging
import sys
import threading
import zipfile
from types import ModuleType

import pytest

from cachesvc_client.hooks import imports

_numbers = itertools.count()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes an importable module under a new name and returns the name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def make(source: str = "value = 1\n") -> str:
        name = f"hooked_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        names.append(name)
        return name

    yield make
    for name in names:
        sys.modules.pop(name, None)
        assert name not in imports._waiting, "the hooks leave no callback behind"


def test_the_module_and_its_loader_are_as_without_hooks(module):
    name, modules = module("def f():\n    return 'source'\n"), []
    imports.when_imported(name, modules.append)
    assert name not in sys.modules, "registering a callback imports nothing"
    imported = importlib.import_module(name)
    assert modules == [imported] and sys.modules[name] is imported
    plain = importlib.import_module(module())
    assert type(imported.__loader__) is type(plain.__loader__)
    assert imported.__loader__ is imported.__spec__.loader
    assert vars(imported.__loader__).keys() == vars(plain.__loader__).keys()
    assert inspect.getsource(imported.f) == "def f():\n    return 'source'\n"
    assert importlib.reload(imported) is imported and modules == [imported], "a callback runs once"


def test_callbacks_run_in_the_order_of_registration_on_a_complete_module(module):
    name, order = module(), []
    for number in range(3):
        imports.when_imported(
            name, lambda imported_module, number=number: order.append((number, imported_module.value))
        )
    importlib.import_module(name)
    assert order == [(0, 1), (1, 1), (2, 1)]
    imports.when_imported(name, lambda imported_module: order.append((3, imported_module.value)))
    assert order[-1] == (3, 1), "the callback runs at once if the module is imported already"


def test_a_callback_that_raises_is_logged_and_the_other_callbacks_run(module, caplog):
    name, modules = module(), []

    def fails(_: ModuleType) -> None:
        raise ValueError("ours")

    imports.when_imported(name, fails)
    imports.when_imported(name, modules.append)
    with caplog.at_level(logging.WARNING, "cachesvc"):
        assert importlib.import_module(name).value == 1
    assert len(modules) == 1
    assert [name in record.getMessage() for record in caplog.records] == [True]


def test_a_search_for_a_module_does_not_import_it(module):
    """Libraries call ``importlib.util.find_spec("torch")`` to ask whether torch is installed."""
    name, modules = module(), []
    imports.when_imported(name, modules.append)
    assert importlib.util.find_spec(name) is not None and modules == []
    importlib.import_module(name)
    assert len(modules) == 1


def test_a_failed_import_fails_as_without_hooks_and_its_callback_waits_for_success(module, tmp_path):
    name, modules = module("raise RuntimeError('theirs')\n"), []
    imports.when_imported(name, modules.append)
    with pytest.raises(RuntimeError, match="theirs"):
        importlib.import_module(name)
    assert modules == [] and name not in sys.modules
    (tmp_path / f"{name}.py").write_text("value = 'another length'\n")
    importlib.invalidate_caches()
    importlib.import_module(name)
    assert len(modules) == 1


def test_a_hook_does_not_make_an_absent_module_exist(module):
    del module
    name = "hooked_and_absent"
    imports.when_imported(name, pytest.fail)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
    imports._waiting.pop(name)


def test_modules_that_share_one_loader_get_their_own_callbacks(tmp_path, monkeypatch):
    """A zip archive has one loader for all modules: one module is looked for, and another one is loaded."""
    names = [f"zipped_{next(_numbers)}" for _ in range(2)]
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        for name in names:
            archive.writestr(f"{name}.py", "")
    monkeypatch.syspath_prepend(str(tmp_path / "packed.zip"))
    values: list[str] = []
    imports.when_imported(names[0], lambda module: values.append(module.__name__))
    importlib.util.find_spec(names[0])
    importlib.import_module(names[1])
    assert values == []
    importlib.import_module(names[0])
    assert values == [names[0]]
    for name in names:
        sys.modules.pop(name)


def test_a_built_in_module_is_left_alone(monkeypatch):
    """All built-in modules share one loader, which is a class."""
    from importlib.machinery import BuiltinImporter

    before = BuiltinImporter.exec_module
    name = next(name for name in sys.builtin_module_names if name not in sys.modules)
    imports.when_imported(name, [].append)
    importlib.import_module(name)
    assert BuiltinImporter.exec_module == before
    imports._waiting.pop(name, None)
    monkeypatch.delitem(sys.modules, name)


def test_a_hook_registered_during_the_import_waits_for_the_next_import(module, monkeypatch):
    """The import itself, or another thread, attaches while the import runs."""
    values: list[str] = []
    holder = ModuleType("hooked_holder")
    monkeypatch.setitem(sys.modules, "hooked_holder", holder)
    name = module("import hooked_holder\nhooked_holder.register(__name__)\nvalue = 1\n")
    holder.register = lambda own: imports.when_imported(
        own, lambda imported_module: values.append(imported_module.value)
    )
    importlib.import_module(name)
    importlib.import_module(module())
    assert values == [1]


def test_the_start_of_an_import_is_announced_once(module):
    name, order = module(), []
    imports.when_importing(name, lambda: order.append(name in sys.modules))
    imports.when_imported(name, lambda _: order.append("imported"))
    importlib.import_module(name)
    assert order == [False, "imported"]
    imports.when_importing(name, lambda: order.append("at once"))
    assert order == [False, "imported", "at once"]


def test_around_a_body_is_told_whenever_it_begins_and_once_when_it_ended(module):
    """An import that only looks for the module runs no body; one that fails has no end."""
    name, order = module("import sys\nif sys.modules.pop('fails', None): raise ImportError\nvalue = 1\n"), []
    imports.around_body(name, before=lambda: order.append("begins"), after=lambda _: order.append("ended"))
    imports.when_imported(name, lambda _: order.append("imported"))
    importlib.util.find_spec(name)
    assert order == []
    sys.modules["fails"] = sys
    with pytest.raises(ImportError):
        importlib.import_module(name)
    assert order == ["begins"]
    importlib.import_module(name)
    assert order == ["begins", "begins", "ended", "imported"]


def test_a_callback_at_the_start_that_raises_is_logged_and_the_import_goes_on(module, caplog):
    name = module()
    imports.when_importing(name, lambda: 1 / 0)
    with caplog.at_level(logging.WARNING, "cachesvc"):
        assert importlib.import_module(name).value == 1
    assert name in caplog.text


def test_threads_may_import_at_once(module):
    """Threads import one module and different modules, each with hooks: each hook runs once, on a complete
    module."""
    slow = "import time\ntime.sleep(0.02)\nvalue = 1\n"
    names = [module(slow) for _ in range(4)]
    calls: list[tuple[str, int]] = []
    for name in names:
        imports.when_imported(
            name, lambda imported_module: calls.append((imported_module.__name__, imported_module.value))
        )
    start = threading.Barrier(8)

    def run(own: list[str]) -> None:
        start.wait(10)
        for name in own:
            importlib.import_module(name)

    orders = [names, names[::-1]] * 4
    threads = [threading.Thread(target=run, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "deadlock"
    assert sorted(calls) == sorted((name, 1) for name in names)


# wrap ---------------------------------------------------------------------------------------------


class Owner:
    """Has one function of each sort, which the tests wrap."""

    def method(self, value):
        return ("method", value)

    @staticmethod
    def static(value):
        return ("static", value)

    @classmethod
    def for_class(cls, value):
        return (cls.__name__, value)


@pytest.fixture
def target():
    wrapped = ModuleType("wrapped")
    wrapped.function = lambda value: ("function", value)
    wrapped.Owner = type("Owner", (), dict(vars(Owner)))
    return wrapped


def doubled(original):
    @functools.wraps(original)
    def around(*args, **kwargs):
        return (*original(*args, **kwargs), "wrapped")

    return around


@pytest.mark.parametrize(
    ("path", "call", "plain"),
    [
        ("function", lambda wrapped_module: wrapped_module.function(1), ("function", 1)),
        ("Owner.method", lambda wrapped_module: wrapped_module.Owner().method(1), ("method", 1)),
        ("Owner.static", lambda wrapped_module: wrapped_module.Owner.static(1), ("static", 1)),
        ("Owner.static", lambda wrapped_module: wrapped_module.Owner().static(1), ("static", 1)),
        ("Owner.for_class", lambda wrapped_module: wrapped_module.Owner.for_class(1), ("Owner", 1)),
        (
            "Owner.for_class",
            lambda wrapped_module: type("Child", (wrapped_module.Owner,), {}).for_class(1),
            ("Child", 1),
        ),
    ],
)
def test_a_function_is_wrapped_once_and_called_as_before(target, path, call, plain):
    assert call(target) == plain
    assert imports.wrap(target, path, doubled) and imports.wrap(target, path, doubled)
    assert call(target) == (*plain, "wrapped")

    def other(original):
        return doubled(original)

    assert imports.wrap(target, path, other)
    assert imports.wrap(target, path, doubled), "the same owner under another path is wrapped already"
    assert call(target) == (*plain, "wrapped", "wrapped")


@pytest.mark.parametrize("path", ["absent", "Owner.absent", "Absent.method", "Owner.absent.deeper"])
def test_a_missing_name_is_reported(target, path):
    before = dict(vars(target))
    assert imports.wrap(target, path, doubled) is False
    assert vars(target) == before


def test_an_inherited_function_is_not_wrapped_in_the_subclass(target):
    """A wrapper in the subclass would hide later changes of the parent's function from the subclass."""
    target.Child = type("Child", (target.Owner,), {})
    assert imports.wrap(target, "Child.method", doubled) is False


# hook, chain, callback and disarm -------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _clean():
    yield
    imports.disarm()


class Strict(Exception):
    """Stands for an error that the caller must get."""


def counting(calls):
    def original(*args, **kwargs):
        calls.append((args, kwargs))
        if "theirs" in kwargs:
            raise ValueError("theirs")
        return len(calls)

    return original


def test_a_hook_calls_the_original_once_whatever_the_hook_does(target, caplog):
    caplog.set_level(logging.DEBUG, "cachesvc")

    def before(_):
        raise RuntimeError("ours")

    def after(call):
        call()
        raise RuntimeError("ours")

    def twice(call):
        return call() + call()

    def swallows(call):
        with contextlib.suppress(ValueError):
            call()
        return "swallowed"

    def replaces(_):
        return "another"

    for body, answer, failed in (
        (before, 1, 1), (after, 1, 1), (twice, 2, 0), (swallows, "swallowed", 0), (replaces, "another", 0)
    ):  # fmt: skip
        calls: list = []
        target.function = counting(calls)
        caplog.clear()
        assert imports.hook(target, "function", body)
        assert target.function(1, more=2) == answer
        assert calls == ([((1,), {"more": 2})] if body is not replaces else [])
        assert len(caplog.records) == failed
        if body is replaces:
            continue
        calls.clear()
        with pytest.raises(ValueError, match="theirs"):
            target.function(theirs=True)
        assert len(calls) == 1, (
            "the original's own error reaches the caller, and the original is not called again"
        )


def test_only_errors_meant_for_the_caller_reach_the_caller(target):
    def strict(_):
        raise Strict

    calls: list = []
    target.function = counting(calls)
    imports.hook(target, "function", strict, reaches=(Strict,))
    with pytest.raises(Strict):
        target.function()
    assert calls == []


def test_arguments_get_their_names_from_the_originals_signature(target):
    calls = []

    def body(call):
        calls.append((call.argument("value"), call.args[0]))
        return call()

    imports.hook(target, "Owner.for_class", body)
    assert target.Owner.for_class(value=1) == ("Owner", 1)
    assert calls == [(1, target.Owner)]
    imports.hook(target, "function", lambda call: call.argument("absent"))
    assert target.function(1) == ("function", 1)


def test_the_original_gets_another_argument_however_it_was_passed(target):
    def body(call):
        call.set_argument("value", 5)
        return call()

    imports.hook(target, "Owner.for_class", body)
    assert target.Owner.for_class(value=1) == target.Owner.for_class(1) == ("Owner", 5)


def test_a_callback_takes_any_arguments_and_raises_nothing():
    calls = []
    ours = imports.callback(lambda *args, **kwargs: calls.append((args, kwargs)))
    assert ours() is None and ours(1, more=2) is None
    assert calls == [((), {}), ((1,), {"more": 2})]
    assert imports.callback(lambda: 1 / 0)(1, 2, 3) is None
    imports.disarm()
    ours()
    assert len(calls) == 2


def test_a_chained_callback_lets_the_earlier_callback_answer(target):
    order = []
    target.listener = lambda **event: order.append("theirs") or event["value"]
    theirs = target.listener
    imports.chain(target, "listener", lambda **_: order.append("ours") or 1 / 0)
    assert target.listener(value=3) == 3 and order == ["ours", "theirs"]
    imports.disarm()
    assert target.listener is theirs


def test_disarming_restores_every_original(target):
    paths = ("function", "Owner.method", "Owner.static", "Owner.for_class")
    before = {"function": target.function, **vars(target.Owner)}
    for path in paths:
        imports.hook(target, path, lambda call: ("ours", call())[0])
        imports.hook(target, path, lambda call: ("ours too", call())[0])
    assert target.function(1) == "ours too" and target.Owner.static(1) == "ours too"
    imports.disarm()
    after = {"function": target.function, **vars(target.Owner)}
    assert [name for name in before if before[name] is not after[name]] == []


def test_a_hook_that_another_wrapper_covers_stays_and_passes_everything_through(target):
    calls = []
    original = target.function
    imports.hook(target, "function", lambda call: calls.append(call.args) or call())
    ours = target.function
    target.function = theirs = functools.wraps(ours)(lambda *args: ("theirs", ours(*args)))
    imports.disarm()
    assert target.function is theirs and theirs(1) == ("theirs", ("function", 1)) and calls == []
    assert imports.hook(target, "function", lambda _: "again"), "armed again"
    assert target.function(1) == "again"
    imports.disarm()
    assert target.function is theirs and original(1) == ("function", 1)


def test_disarming_forgets_callbacks_that_wait_for_an_import(module):
    name, modules = module(), []
    imports.when_imported(name, modules.append)
    imports.when_importing(name, lambda: modules.append("begins"))
    imports.on_disarm(lambda: modules.append("undone"))
    imports.disarm()
    importlib.import_module(name)
    assert modules == ["undone"]


def test_a_callback_that_runs_while_hooks_are_disarmed_installs_nothing(module, target):
    """The application's thread imports a module while the session's thread refuses it."""
    name, undone = module(), []
    before = target.function

    def late(_: ModuleType) -> None:
        disarming = threading.Thread(target=imports.disarm)
        disarming.start()
        disarming.join(10)
        imports.hook(target, "function", lambda _: "ours")
        imports.on_disarm(lambda: undone.append(1))

    imports.when_imported(name, late)
    importlib.import_module(name)
    assert target.function is before and undone == [1]
