"""Test which keys of graphs the paths of a revision hold, and which revisions may wait for them."""

from __future__ import annotations

import pytest

from cachesvc_client.kinds import KINDS
from cachesvc_client.wire.graph_keys import _KINDS, MAX_GRAPH_KEYS, graph_keys, may_wait

FX, AOT, CONTENT = "f" + "a" * 51, "a" + "b" * 51, "c" * 52


def test_the_keys_of_graphs_are_the_folders_of_content_named_files() -> None:
    paths = [
        f"fxgraph/aa/{FX}/{CONTENT}",
        f"aotautograd/{AOT}/{CONTENT}",
        f"aotautograd/{AOT}/{'d' * 52}",
        f"cachesvc/0123456789abcdef/{'e' * 64}.so",
        f"{'T' * 52}/kernel.json",
        "aa/caa.best_config",
    ]
    assert graph_keys(paths) == (FX, AOT)


def test_the_number_of_keys_is_bounded() -> None:
    paths = [f"aotautograd/a{number:040d}/{CONTENT}" for number in range(MAX_GRAPH_KEYS + 5)]
    assert len(graph_keys(paths)) == MAX_GRAPH_KEYS


@pytest.mark.parametrize(
    ("kinds", "keys", "waits"),
    [
        ({"inductor", "triton", "frames"}, (FX,), True),
        ({"inductor"}, (), False),
        ({"inductor", "torch_extensions"}, (FX,), False),
        ({"vllm"}, (FX,), False),
    ],
)
def test_only_what_a_graph_asks_for_may_wait(kinds: set[str], keys: tuple[str, ...], waits: bool) -> None:
    assert may_wait(kinds, keys) is waits


def test_the_kinds_that_may_wait_exist() -> None:
    assert {kind.name for kind in KINDS} >= _KINDS
