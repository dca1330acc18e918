"""Test which keys of graphs the paths of a revision hold, and which revisions may wait for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packing import KEY

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.wire.codec import build
from cachesvc_client.wire.manifest.graph_keys import MAX_GRAPH_KEYS, graph_keys
from cachesvc_client.wire.manifest.records import Manifest, Workload
from cachesvc_client.wire.names import Name, Target

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


GRAPH = SourceFile("inductor", f"aotautograd/{AOT}/{CONTENT}", b"graph")


@pytest.mark.parametrize(
    ("files", "waits"),
    [
        ([GRAPH, SourceFile("triton", "K1/k.cubin", b"c"), SourceFile("frames", "f.frames", b"f")], True),
        ([SourceFile("inductor", "cache/" + "0" * 40, b"tuning")], False),
        ([GRAPH, SourceFile("torch_extensions", "a/b.so", b"library")], False),
        ([GRAPH, SourceFile("unknown_here", "a", b"a")], False),
    ],
)
def test_only_what_a_graph_asks_for_may_wait(tmp_path: Path, files: list[SourceFile], waits: bool) -> None:
    draft = Draft(Name.parse("team/bert"), Target("bert/bf16"), {"torch": "2.13.0"}, Workload(), ("host",))
    manifest = build_bundle(files, draft, KEY, tmp_path / "a.cachesvc")
    assert build(Manifest, json.loads(manifest.encode())).may_wait is manifest.may_wait is waits
