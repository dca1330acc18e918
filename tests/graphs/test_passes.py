"""Test what describes a custom pass of Inductor: vLLM's count and time what they did."""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from cachesvc_client.graphs.code.followed import FollowedCode
from cachesvc_client.graphs.code.passes import described


def timed(call: Callable[[Pass, list[str]], None]) -> Callable[[Pass, list[str]], None]:
    @functools.wraps(call)
    def wrapped(self: Pass, graph: list[str]) -> None:
        self.began = time.perf_counter_ns()
        call(self, graph)

    return wrapped


class Pass:
    def __init__(self, scale: int) -> None:
        self.scale = scale
        self.names = ["add"]
        self.done: dict[str, int] = defaultdict(int)

    @timed
    def __call__(self, graph: list[str]) -> None:
        self.done.clear()
        for node in graph:
            self.done[node] += self.scale * (node in self.names)

    def set_scale(self, scale: int) -> None:
        self.scale = scale

    def uuid(self) -> str:
        return "a pass"


class Other(Pass):
    @timed
    def __call__(self, graph: list[str]) -> None:
        graph.reverse()


def digest(value: object) -> str:
    return FollowedCode([described(value)]).digest


def test_what_a_pass_counts_while_it_runs_is_left_out():
    one, other = Pass(2), Pass(2)
    one(["add", "mul"])
    assert one.done and not other.done
    assert digest(one) == digest(other)


def test_what_a_pass_was_made_with_and_its_code_are_compared():
    named = Pass(2)
    named.names.append("mul")
    scaled = Pass(2)
    scaled.set_scale(3)  # by a method that no call of the pass runs
    assert len({digest(Pass(2)), digest(scaled), digest(named), digest(Other(2))}) == 4
    assert digest(Pass(3)) == digest(scaled)


def test_the_code_of_a_pass_that_asks_the_process_is_compared_too() -> None:
    """PyTorch has a key for it by its ``uuid``."""
    importlib.import_module("torch")

    def asks(text: str) -> type[Pass]:
        names: dict[str, Any] = {"os": os, "__name__": __name__}
        exec(f"def log(self):\n    return os.getcwd()\ndef __call__(self, graph):\n    return {text}", names)
        return type("Asks", (Pass,), {name: names[name] for name in ("log", "__call__")})

    assert FollowedCode([described(asks("graph")(2))]).unknown
    assert digest(asks("graph")(2)) == digest(asks("graph")(2)) != digest(asks("[graph]")(2))


def test_what_says_nothing_of_itself_is_compared_whole():
    def function() -> None: ...

    assert described(function) is function
    assert described(Pass) is Pass
