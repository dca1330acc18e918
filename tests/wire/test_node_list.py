"""Test the format of the lists that a node's agent keeps."""

import json
from pathlib import Path

import pytest

from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Lane, Name, Tag, Target
from cachesvc_client.wire.requests.node_list import ListedRevision, NodeList, list_key, sorted_rows

GOLDEN = Path(__file__).parents[1] / "golden" / "node-list-1.json"
LIST = NodeList(
    "https://cachesvc.example",
    "team/bert:prod",
    Tag("prod"),
    (
        ListedRevision(
            entry=Digest.of(b"entry"),
            revision=Digest.of(b"revision"),
            target=Target("bert/bf16/default"),
            pack=Digest.of(b"pack"),
            pack_size=123_456,
            sequence=1_790_000_000_000,
            published=1_790_000_000,
            fingerprint=0,
            scopes=("gpu",),
            model=Digest.of(b"model"),
            keys=("f" + "a" * 31,),
        ),
    ),
    ({"torch": "2.13.0", "gpu": "NVIDIA H200", "cpu_flags": ["avx", "avx2"]},),
)


def test_the_golden_file_is_read_and_written_as_it_is() -> None:
    assert NodeList.parse(GOLDEN.read_bytes()) == LIST
    assert LIST.encode() == GOLDEN.read_bytes()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "cachesvc.node-list/2"),
        ("revisions", [{}]),
        ("fingerprints", []),
        ("tag", "a b"),
        ("url", 1),
    ],
)
def test_what_is_no_list_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"format|revision|fingerprint|tag|url"):
        NodeList.parse(json.dumps({**json.loads(GOLDEN.read_bytes()), field: value}).encode())


def test_lists_of_other_registries_names_tags_and_lanes_have_other_keys() -> None:
    name = Name.parse("team/bert")
    keys = {
        list_key("https://a.example", name),
        list_key("https://b.example", name),
        list_key("https://a.example", Name.parse("team/bert:prod")),
        list_key("https://a.example", name, Lane("pr-1")),
    }
    assert len(keys) == 4


def test_the_newest_revision_comes_first() -> None:
    from dataclasses import replace

    [row] = LIST.revisions
    rows = [
        replace(row, published=second, sequence=sequence) for second, sequence in ((9, 2), (9, 3), (10, 1))
    ]
    assert [each.sequence for each in sorted_rows(rows)] == [1, 3, 2]
