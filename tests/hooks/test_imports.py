"""Hooks on imports: the import is as it was without them, whatever the hooks do."""

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
    """Writes a module under a name of its own; it is importable for this test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def make(source: str = "value = 1\n") -> str:
        name = f"hooked_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        made.append(name)
        return name

    yield make
    for name in made:
        sys.modules.pop(name, None)
        assert name not in imports._waiting, "nothing is left behind"


def test_the_module_and_its_loader_are_as_without_us(module):
    name, seen = module("def f():\n    return 'source'\n"), []
    imports.when_imported(name, seen.append)
    assert name not in sys.modules, "registering imports nothing"
    imported = importlib.import_module(name)
    assert seen == [imported] and sys.modules[name] is imported
    plain = importlib.import_module(module())
    assert type(imported.__loader__) is type(plain.__loader__)
    assert imported.__loader__ is imported.__spec__.loader
    assert vars(imported.__loader__).keys() == vars(plain.__loader__).keys()
    assert inspect.getsource(imported.f) == "def f():\n    return 'source'\n"
    assert importlib.reload(imported) is imported and seen == [imported], "a callback runs once"


def test_callbacks_run_in_the_order_of_registration_on_a_complete_module(module):
    name, order = module(), []
    for number in range(3):
        imports.when_imported(name, lambda seen, number=number: order.append((number, seen.value)))
    importlib.import_module(name)
    assert order == [(0, 1), (1, 1), (2, 1)]
    imports.when_imported(name, lambda seen: order.append((3, seen.value)))
    assert order[-1] == (3, 1), "at once, if it is imported already"


def test_a_callback_that_raises_is_logged_and_the_others_run(module, caplog):
    name, seen = module(), []

    def fails(_: ModuleType) -> None:
        raise ValueError("ours")

    imports.when_imported(name, fails)
    imports.when_imported(name, seen.append)
    with caplog.at_level(logging.WARNING, "cachesvc"):
        assert importlib.import_module(name).value == 1
    assert len(seen) == 1
    assert [name in record.getMessage() for record in caplog.records] == [True]


def test_looking_for_a_module_is_not_importing_it(module):
    """`importlib.util.find_spec("torch")` is how libraries ask whether it is there."""
    name, seen = module(), []
    imports.when_imported(name, seen.append)
    assert importlib.util.find_spec(name) is not None and seen == []
    importlib.import_module(name)
    assert len(seen) == 1


def test_an_import_that_fails_fails_as_ever_and_counts_when_it_succeeds(module, tmp_path):
    name, seen = module("raise RuntimeError('theirs')\n"), []
    imports.when_imported(name, seen.append)
    with pytest.raises(RuntimeError, match="theirs"):
        importlib.import_module(name)
    assert seen == [] and name not in sys.modules
    (tmp_path / f"{name}.py").write_text("value = 'another length'\n")
    importlib.invalidate_caches()
    importlib.import_module(name)
    assert len(seen) == 1


def test_a_module_that_does_not_exist_is_not_there(module):
    del module
    name = "hooked_and_absent"
    imports.when_imported(name, pytest.fail)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)
    imports._waiting.pop(name)


def test_one_loader_for_many_modules_gives_each_its_own(tmp_path, monkeypatch):
    """A zip archive has one loader for all: looked for one, loaded another."""
    names = [f"zipped_{next(_numbers)}" for _ in range(2)]
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        for name in names:
            archive.writestr(f"{name}.py", "")
    monkeypatch.syspath_prepend(str(tmp_path / "packed.zip"))
    seen: list[str] = []
    imports.when_imported(names[0], lambda module: seen.append(module.__name__))
    importlib.util.find_spec(names[0])
    importlib.import_module(names[1])
    assert seen == []
    importlib.import_module(names[0])
    assert seen == [names[0]]
    for name in names:
        sys.modules.pop(name)


def test_a_built_in_module_is_left_alone(monkeypatch):
    """Its loader is a class, which all built-in modules share."""
    from importlib.machinery import BuiltinImporter

    before = BuiltinImporter.exec_module
    name = next(name for name in sys.builtin_module_names if name not in sys.modules)
    imports.when_imported(name, [].append)
    importlib.import_module(name)
    assert BuiltinImporter.exec_module == before
    imports._waiting.pop(name, None)
    monkeypatch.delitem(sys.modules, name)


def test_registered_while_the_import_is_under_way(module, monkeypatch):
    """Attached by what the import itself runs, or on another thread: the hook comes with the next import."""
    seen: list[str] = []
    holder = ModuleType("hooked_holder")
    monkeypatch.setitem(sys.modules, "hooked_holder", holder)
    name = module("import hooked_holder\nhooked_holder.register(__name__)\nvalue = 1\n")
    holder.register = lambda own: imports.when_imported(own, lambda done: seen.append(done.value))
    importlib.import_module(name)
    importlib.import_module(module())
    assert seen == [1]


def test_the_beginning_of_an_import_is_told_once(module):
    name, order = module(), []
    imports.when_importing(name, lambda: order.append(name in sys.modules))
    imports.when_imported(name, lambda _: order.append("imported"))
    importlib.import_module(name)
    assert order == [False, "imported"]
    imports.when_importing(name, lambda: order.append("at once"))
    assert order == [False, "imported", "at once"]


def test_a_beginning_that_raises_is_logged_and_the_import_goes_on(module, caplog):
    name = module()
    imports.when_importing(name, lambda: 1 / 0)
    with caplog.at_level(logging.WARNING, "cachesvc"):
        assert importlib.import_module(name).value == 1
    assert name in caplog.text


def test_threads_that_import_at_once(module):
    """The same module and different ones, each with hooks: every hook once, on a complete module."""
    slow = "import time\ntime.sleep(0.02)\nvalue = 1\n"
    names = [module(slow) for _ in range(4)]
    seen: list[tuple[str, int]] = []
    for name in names:
        imports.when_imported(name, lambda done: seen.append((done.__name__, done.value)))
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
    assert sorted(seen) == sorted((name, 1) for name in names)


# wrap ---------------------------------------------------------------------------------------------


class Owner:
    """What the tests wrap."""

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
    made = ModuleType("wrapped")
    made.function = lambda value: ("function", value)
    made.Owner = type("Owner", (), dict(vars(Owner)))
    return made


def doubled(original):
    @functools.wraps(original)
    def around(*args, **kwargs):
        return (*original(*args, **kwargs), "wrapped")

    return around


@pytest.mark.parametrize(
    ("path", "call", "plain"),
    [
        ("function", lambda made: made.function(1), ("function", 1)),
        ("Owner.method", lambda made: made.Owner().method(1), ("method", 1)),
        ("Owner.static", lambda made: made.Owner.static(1), ("static", 1)),
        ("Owner.static", lambda made: made.Owner().static(1), ("static", 1)),
        ("Owner.for_class", lambda made: made.Owner.for_class(1), ("Owner", 1)),
        ("Owner.for_class", lambda made: type("Child", (made.Owner,), {}).for_class(1), ("Child", 1)),
    ],
)
def test_wrapped_once_and_called_as_before(target, path, call, plain):
    assert call(target) == plain
    assert imports.wrap(target, path, doubled) and imports.wrap(target, path, doubled)
    assert call(target) == (*plain, "wrapped")

    def other(original):
        return doubled(original)

    assert imports.wrap(target, path, other)
    assert imports.wrap(target, path, doubled), "wrapped by it already, under another"
    assert call(target) == (*plain, "wrapped", "wrapped")


@pytest.mark.parametrize("path", ["absent", "Owner.absent", "Absent.method", "Owner.absent.deeper"])
def test_a_name_that_is_not_there_is_told(target, path):
    before = dict(vars(target))
    assert imports.wrap(target, path, doubled) is False
    assert vars(target) == before


def test_what_is_inherited_is_not_wrapped_at_the_heir(target):
    """It would hide the parent's later changes from it."""
    target.Child = type("Child", (target.Owner,), {})
    assert imports.wrap(target, "Child.method", doubled) is False


# hook, chain, callback and disarm -------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _clean():
    yield
    imports.disarm()


class Strict(Exception):
    """An error that is meant for the caller."""


def counting(calls):
    def original(*args, **kwargs):
        calls.append((args, kwargs))
        if "theirs" in kwargs:
            raise ValueError("theirs")
        return len(calls)

    return original


def test_a_hook_calls_the_original_once_whatever_it_does(target, caplog):
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
        assert len(calls) == 1, "its own error is the caller's, and it is not tried again"


def test_only_errors_that_are_meant_for_the_caller_reach_it(target):
    def strict(_):
        raise Strict

    calls: list = []
    target.function = counting(calls)
    imports.hook(target, "function", strict, reaches=(Strict,))
    with pytest.raises(Strict):
        target.function()
    assert calls == []


def test_arguments_are_named_by_the_originals_signature(target):
    seen = []

    def body(call):
        seen.append((call.argument("value"), call.args[0]))
        return call()

    imports.hook(target, "Owner.for_class", body)
    assert target.Owner.for_class(value=1) == ("Owner", 1)
    assert seen == [(1, target.Owner)]
    imports.hook(target, "function", lambda call: call.argument("absent"))
    assert target.function(1) == ("function", 1)


def test_a_callback_takes_any_arguments_and_raises_nothing():
    seen = []
    ours = imports.callback(lambda *args, **kwargs: seen.append((args, kwargs)))
    assert ours() is None and ours(1, more=2) is None
    assert seen == [((), {}), ((1,), {"more": 2})]
    assert imports.callback(lambda: 1 / 0)(1, 2, 3) is None
    imports.disarm()
    ours()
    assert len(seen) == 2


def test_a_chained_callback_lets_the_one_before_it_answer(target):
    order = []
    target.listener = lambda **event: order.append("theirs") or event["value"]
    theirs = target.listener
    imports.chain(target, "listener", lambda **_: order.append("ours") or 1 / 0)
    assert target.listener(value=3) == 3 and order == ["ours", "theirs"]
    imports.disarm()
    assert target.listener is theirs


def test_disarming_gives_every_attribute_its_original_back(target):
    paths = ("function", "Owner.method", "Owner.static", "Owner.for_class")
    before = {"function": target.function, **vars(target.Owner)}
    for path in paths:
        imports.hook(target, path, lambda call: ("ours", call())[0])
        imports.hook(target, path, lambda call: ("ours too", call())[0])
    assert target.function(1) == "ours too" and target.Owner.static(1) == "ours too"
    imports.disarm()
    after = {"function": target.function, **vars(target.Owner)}
    assert [name for name in before if before[name] is not after[name]] == []


def test_a_hook_that_somebody_wrapped_stays_and_passes_everything_through(target):
    seen = []
    original = target.function
    imports.hook(target, "function", lambda call: seen.append(call.args) or call())
    ours = target.function
    target.function = theirs = functools.wraps(ours)(lambda *args: ("theirs", ours(*args)))
    imports.disarm()
    assert target.function is theirs and theirs(1) == ("theirs", ("function", 1)) and seen == []
    assert imports.hook(target, "function", lambda _: "again"), "armed again"
    assert target.function(1) == "again"
    imports.disarm()
    assert target.function is theirs and original(1) == ("function", 1)


def test_disarming_forgets_what_waits_for_an_import(module):
    name, seen = module(), []
    imports.when_imported(name, seen.append)
    imports.when_importing(name, lambda: seen.append("begins"))
    imports.on_disarm(lambda: seen.append("undone"))
    imports.disarm()
    importlib.import_module(name)
    assert seen == ["undone"]


def test_a_callback_that_is_running_while_it_is_disarmed_puts_nothing_in(module, target):
    """The application's thread imports; the session's thread refuses."""
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
