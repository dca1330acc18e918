"""Which files the kinds take: real paths, as seen on a CPU and on an H200, and none that leads elsewhere."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesvc_client import kinds

HASH = "dsjz5o2tbovhe5ev7s6zpbucuplqbcxzmrhv2lyg4vwjapuxlndx"
KEY = "XU5DT2AO5BD5AEHEYGLPP5LRDFHHCUEJT4LGDVLB4STXUGVGHFPA"
LONG = "triton_poi_fused__scaled_dot_product_cudnn_attention__to_copy__unsafe_view_add_arange_bitwise_and_bmm"
REAL = [
    ("inductor", f"fxgraph/ds/f{HASH[1:]}/{HASH}", "immutable"),
    ("inductor", f"aotautograd/a{HASH[1:]}/{HASH}", "immutable"),
    ("inductor", "wz/" + "0f" * 32 + ".best_config", "merge"),
    ("inductor", "cache/" + "ab" * 32, "merge"),
    ("inductor", f"wz/c{HASH}.picked_kernel", "immutable"),
    ("inductor", "cachesvc/" + "0" * 16 + "/" + "a1" * 32 + ".so", "ours"),
    ("triton", f"{KEY}/{LONG}.cubin", "immutable"),
    ("triton", f"{KEY}/doubled.source", "immutable"),
    ("triton", f"{KEY}/__grp__{LONG}.json", "immutable"),
    ("triton", f"{KEY}/cuda_utils.cpython-312-x86_64-linux-gnu.so", "immutable"),
    ("triton", f"{KEY}/__triton_launcher.cpython-312-x86_64-linux-gnu.so", "immutable"),
    ("triton", f"{KEY}/_tuned_sum.autotune.json", "immutable"),
    ("cuda", "a/2/daf144f9da5951", "immutable"),
    ("cuda", "0/1/0a67439f97f785", "immutable"),
]
NONE_OF_OURS = [
    ("inductor", f"wz/c{HASH}.py"),
    ("inductor", f"wz/c{HASH}.main.so"),
    ("inductor", f"fxgraph/ds/f{HASH[1:]}/.1234.tmp"),
    ("inductor", "dynamo/code_state_0.pkl"),
    ("inductor", "cachesvc/" + "0" * 16 + "/../../evil.so"),
    ("inductor", "../" + f"aotautograd/a{HASH[1:]}/{HASH}"),
    ("inductor", f"/aotautograd/a{HASH[1:]}/{HASH}"),
    ("inductor", f"aotautograd/a{HASH[1:]}/{HASH}\n"),
    ("triton", f"{KEY}/../x.json"),
    ("triton", f"../{KEY}/x.json"),
    ("triton", f"{KEY}/tmp.pid_1_2/x.json"),
    ("triton", f"{KEY}/lock"),
    ("triton", f"{KEY}/x.py"),
    ("triton", f"{KEY}/.x.so"),
    ("triton", "x.json"),
    ("cuda", "index"),
    ("cuda", "a/2/index"),
    ("cuda", "a/2/DAF144F9DA5951"),
    ("cuda", "a/2/../daf144f9da5951"),
    ("cuda", "a/2/daf144f9da5951.tmp"),
    ("cuda", ".cachesvc/2/daf144f9da5951"),
]


@pytest.mark.parametrize(("kind", "path", "write"), REAL)
def test_real_files_are_known(kind: str, path: str, write: str) -> None:
    rule = kinds.RULES[kind].rule(path)
    assert rule is not None and rule.write == write
    assert rule.last == any(part in path for part in ("__grp__", "fxgraph/", "aotautograd/"))


@pytest.mark.parametrize(("kind", "path"), NONE_OF_OURS)
def test_other_files_are_not(kind: str, path: str) -> None:
    assert kinds.RULES[kind].rule(path) is None


@given(
    st.sampled_from(REAL), st.sampled_from(["/", "/../", "/./", "//", "\0", "\n", "\\", " ", "é"]), st.data()
)
def test_no_path_leads_out_of_the_folder(real: tuple[str, str, str], piece: str, data: st.DataObject) -> None:
    kind, path, _ = real
    place = data.draw(st.integers(0, len(path)))
    rule = kinds.RULES[kind].rule(path[:place] + piece + path[place:])
    assert rule is None


def _merge(kind: str, path: str, local: bytes, incoming: bytes) -> bytes:
    rule = kinds.RULES[kind].rule(path)
    assert rule is not None and rule.merge is not None
    return rule.merge(local, incoming)


def test_a_merge_is_the_union_and_what_is_there_wins() -> None:
    path = REAL[3][1]
    mine = {"mm": {"a": {"1": 0.5}}, "conv": {"x": 1}}
    theirs = {"mm": {"a": {"1": 9.0, "2": 2.0}, "b": {}}, "bmm": {}}
    joined = json.loads(_merge("inductor", path, json.dumps(mine).encode(), json.dumps(theirs).encode()))
    assert joined == {"mm": {"a": {"1": 0.5, "2": 2.0}, "b": {}}, "conv": {"x": 1}, "bmm": {}}


@pytest.mark.parametrize("incoming", [b"", b"not json", b"[1]", b'"x"', b"\xff"])
def test_a_merge_with_something_else_keeps_what_is_there(incoming: bytes) -> None:
    local = b'{"XBLOCK": 32}'
    assert json.loads(_merge("inductor", REAL[2][1], local, incoming)) == {"XBLOCK": 32}
    assert _merge("inductor", REAL[2][1], b"half a fi", b"{}") == b"half a fi"
