"""Test which tensors are said to lie in the same memory."""

from __future__ import annotations

from typing import Any

import torch

from cachesvc_client.graphs.memory import overlaps


class Pair(torch.Tensor):
    """Holds two tensors, and has no memory of its own."""

    first: torch.Tensor
    second: torch.Tensor

    @staticmethod
    def __new__(cls, first: torch.Tensor, second: torch.Tensor) -> Pair:
        pair: Pair = torch.Tensor._make_wrapper_subclass(cls, first.shape)  # type: ignore[attr-defined]
        pair.first, pair.second = first, second
        return pair

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["first", "second"], None

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise NotImplementedError


def test_memory_inside_of_a_subclass_counts() -> None:
    memory = torch.zeros(8)
    parts = memory[:4], memory[2:6]
    assert overlaps([("a", Pair(*parts))]) == ["a.first a.second 8"]
    assert overlaps([("a", Pair(memory, torch.zeros(8))), ("b", parts[1])]) == ["a.first b 8"]
    within = Pair(Pair(memory, torch.zeros(8)), torch.zeros(8))
    assert overlaps([("a", within), ("b", memory)]) == ["a.first.first b 0"]
    assert overlaps([("a", Pair(memory[:4], memory[4:]))]) == []
