"""Test that a set in the metadata of a tensor subclass is the same in a key, in whatever order it comes."""

from __future__ import annotations

import pickle
import weakref
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from cachesvc_client.graphs.set_order import in_order


@dataclass(frozen=True)
class Holder:
    value: Any


class OwnSet(set[Any]):
    pass


# Of equal sets of these numbers the one that begins with 8 is in another order.
BACK, FORTH = [8, 0], [0, 8]
HOLDERS = [
    set,
    frozenset,
    OwnSet,
    lambda numbers: (1, [set(numbers)]),
    lambda numbers: {"a": {"b": set(numbers)}},
    lambda numbers: {frozenset(numbers): 1},
    lambda numbers: Holder(set(numbers)),
    lambda numbers: {frozenset(numbers), frozenset({2})},
    lambda numbers: OrderedDict(a=set(numbers)),
    lambda numbers: defaultdict(list, a=[OwnSet(numbers)]),
]


@pytest.mark.parametrize("holder", HOLDERS)
def test_equal_sets_are_equal_and_others_are_not(holder: Any) -> None:
    one, again, other = holder(BACK), holder(FORTH), holder([0, 9])
    if isinstance(one, set):
        assert pickle.dumps(one) != pickle.dumps(again), "PyTorch takes them for others"
    ordered = [pickle.dumps(in_order(value)) for value in (one, again, other)]
    assert ordered[0] == ordered[1] != ordered[2]


def test_what_differs_beside_the_order_stays_different() -> None:
    named = OwnSet(BACK)
    named.name = "x"  # type: ignore[attr-defined]
    values = [set(BACK), frozenset(BACK), OwnSet(BACK), named, {0, 8.0}, {"0", "8"}, (0, 8), [0, 8]]
    assert len({pickle.dumps(in_order(value)) for value in values}) == len(values)


@pytest.mark.parametrize(
    "value",
    [
        None,
        ("a", 1, 2.5, b"c"),
        {"shape": torch.Size([2]), "dtype": torch.int8, "device": torch.device("cpu")},
        [Holder(1), {"a": OrderedDict(b=2)}],
        weakref.WeakSet(),
        {"function": lambda x: x, "set": Holder(lambda x: {x})},
    ],
)
def test_metadata_without_a_set_or_that_cannot_be_pickled_stay_as_they_are(value: Any) -> None:
    assert in_order(value) is value
