"""Test the words of guards: each guard of the installed torch is known, and what is not known is refused."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import importlib
import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest

from cachesvc_client.kinds.frames.describe import digests, objects
from cachesvc_client.kinds.frames.guards import pickles as guard_bytes
from cachesvc_client.kinds.frames.guards.same_objects import SameObjects
from cachesvc_client.kinds.frames.guards.set_orders import SetOrders
from cachesvc_client.kinds.frames.guards.words import REFUSED, WORDS, guard_words
from tests.releases import TORCH

frames = pytest.mark.skipif(TORCH < (2, 11), reason="there are no frames")


@frames
def test_each_guard_of_this_torch_is_compared_or_refused() -> None:
    """A guard that a new release adds is refused until it has a row."""
    builder: Any = importlib.import_module("torch._dynamo.guards").GuardBuilder
    known = {name for name in vars(builder) if name.isupper()}
    assert known - WORDS.keys() - REFUSED.keys() == set()


def test_a_guard_of_an_unknown_kind_is_refused() -> None:
    for name, why in ({"NEW_MATCH": "guards of the kind NEW_MATCH are not known"} | REFUSED).items():
        guard = types.SimpleNamespace(create_fn_name=lambda name=name: name)
        with pytest.raises(TypeError, match=why):
            guard_words(guard, 1, None)


class Way(enum.Enum):
    FIRST = 1


class Holder:
    pass


@frames
def test_a_pickle_of_guards_holds_no_object_of_a_program() -> None:
    with pytest.raises(TypeError, match=r"holds an object of .*Holder"):
        guard_bytes._dumps({"key": Holder()})
    with pytest.raises(TypeError, match="which no module has"):
        guard_bytes._dumps(lambda: 1)
    assert pickle.loads(guard_bytes._dumps([Way.FIRST, Holder, 1])) == [Way.FIRST, Holder, 1]


@frames
def test_a_guard_is_written_without_its_hash_which_is_another_one_in_each_process() -> None:
    guards: Any = importlib.import_module("torch._dynamo.guards")
    source: Any = importlib.import_module("torch._dynamo.source")
    guard = importlib.import_module("torch._guards").Guard(
        source.LocalSource("x"), guards.GuardBuilder.TYPE_MATCH
    )
    assert isinstance(hash(guard), int) and guard._hash is not None
    again = pickle.loads(guard_bytes._dumps(guard))
    assert again._hash is None and again.originating_source == guard.originating_source


def once(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def run(value: Any) -> Any:
        return function(value)

    return run


def twice(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def run(value: Any) -> Any:
        return function(function(value))

    return run


def method(self: Any) -> Any:
    return self


@dataclasses.dataclass
class Fields:
    a: int = dataclasses.field(default=1, metadata={"times": 1})
    b: int = 2


class Made:
    size = 1
    run = once(method)
    own = property(lambda _: 1)
    held = staticmethod(method)


def reorder() -> None:
    Fields.__dataclass_fields__ = {name: Fields.__dataclass_fields__[name] for name in ("b", "a")}


def other_metadata() -> None:
    made = dataclasses.make_dataclass("Fields", [("a", int, dataclasses.field(metadata={"times": 2}))])
    Fields.__dataclass_fields__["a"] = made.__dataclass_fields__["a"]


CHANGES: dict[str, tuple[type, Callable[[], Any]]] = {
    "a constant": (Made, lambda: setattr(Made, "size", 2)),
    "its type": (Made, lambda: setattr(Made, "size", True)),
    "a decorator": (Made, lambda: setattr(Made, "run", twice(method))),
    "a property": (Made, lambda: setattr(Made, "own", property(lambda _: 2))),
    "a default value": (Made, lambda: setattr(method, "__defaults__", (2,))),
    "a new name": (Made, lambda: setattr(Made, "more", 1)),
    "the order of fields": (Fields, reorder),
    "the metadata of a field": (Fields, other_metadata),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_class_is_another_one_after(change: str) -> None:
    kind, function = CHANGES[change]
    before = digests.class_digest(kind)
    assert digests.class_digest(kind) == before
    function()
    assert digests.class_digest(kind) != before


@frames
@pytest.mark.parametrize("kind", ["SEQUENCE_LENGTH", "DICT_KEYS_MATCH", "TYPE_MATCH"])
def test_the_order_of_a_dict_whose_members_were_moved_is_compared(kind: str) -> None:
    """``move_to_end`` leaves the order of the dict below as it was, and that is what PyTorch compares."""
    guard = types.SimpleNamespace(create_fn_name=lambda: kind, guard_types=None)
    plain, moved = (collections.OrderedDict(a=1, b=2, c=3) for _ in range(2))
    moved.move_to_end("a")
    assert guard_words(guard, moved, None) != guard_words(guard, plain, None)
    moved.move_to_end("b")
    moved.move_to_end("c")
    assert guard_words(guard, moved, None) == guard_words(guard, plain, None)


def test_names_of_one_object_are_told_from_names_of_equal_objects() -> None:
    def numbers(*values: Any) -> list[int]:
        objects = SameObjects()
        for number, value in enumerate(values):
            objects.note(f"G['{number}']", value)
        return objects.numbers

    def made() -> Any:
        return type("A", (), {})

    one, two = [1.0], [1.0]
    assert numbers(one, one) == numbers(two, two) != numbers(one, two) == numbers(two, one)
    first, second = made(), made()
    assert numbers(first(), first) == numbers(second(), second) != numbers(first(), second)
    below, beside = type("B", (first,), {}), type("B", (second,), {})
    assert numbers(below(), first) != numbers(beside(), first)
    text = "".join(["a", "b"])
    assert numbers("ab", text, 7.5, (1,)) == []


def test_equal_sets_of_another_order_are_told_apart() -> None:
    def noted(*values: Any, asked: bool = False) -> SetOrders:
        sets = SetOrders()
        for kind in ("CONSTANT_MATCH", *(["SET_CONTAINS"] if asked else [])):
            for number, value in enumerate(values):
                sets.note(
                    types.SimpleNamespace(create_fn_name=lambda kind=kind: kind, name=f"{number}"), value
                )
        return sets

    one, other = {8, 0}, {0, 8}
    assert one == other and [*one] != [*other]
    for asked in (False, True):
        recorded = noted(one, asked=asked).orders(())
        assert noted({8, 0}, asked=asked).are(recorded) and not noted(other, asked=asked).are(recorded)
    assert noted({"a", "b"}).orders(()).keys() == noted({"a", "b"}, asked=True).orders({"0"}).keys() == {"0"}
    assert noted({"a", "b"}, asked=True).orders(()) == noted({1}).orders(()) == {}


TRUE = {0: True}


class Odd(enum.Enum):
    ONE = 1

    def __bool__(self) -> bool:
        return TRUE[0]

    @property
    def doubled(self) -> int:
        return 4 if TRUE[0] else 2


class Even(enum.Enum):
    ONE = 1

    def traced(self) -> bool:
        return TRUE[0]


class Number(int):
    def __bool__(self) -> bool:
        return TRUE[0]


class Meta(type):
    def __bool__(cls) -> bool:
        return TRUE[0]


class WithMeta(metaclass=Meta):
    pass


class Item:
    def __class_getitem__(cls, _: Any) -> bool:
        return TRUE[0]


class Posing:
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int if TRUE[0] else str


@pytest.mark.parametrize("kind", [Odd, Number, WithMeta, Item, Posing, Even])
def test_code_of_a_class_that_dynamo_runs_is_compared_with_what_it_reads(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other methods Dynamo traces what they read, such as of that of ``Even``."""
    importlib.import_module("torch")
    before = objects.describe(kind)
    monkeypatch.setitem(TRUE, 0, False)
    assert (objects.describe(kind) == before) is (kind is Even)
