"""Test that the codec writes canonical bytes and reads records strictly."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest import records
from cachesvc_client.wire.requests import protocol


@dataclass(frozen=True)
class Inner:
    count: int
    name: str = "x"


@dataclass(frozen=True)
class Outer:
    digest: Digest
    inner: Inner
    many: tuple[Inner, ...] = ()
    table: dict[str, Union[str, int, bool, list[str]]] = field(default_factory=dict)
    maybe: float | None = None
    anything: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tree:
    name: str
    branches: tuple[Tree, ...] = ()


inners = st.builds(Inner, st.integers(-(2**53), 2**53), st.text())
values = st.text() | st.integers() | st.booleans() | st.lists(st.text(), max_size=3)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
outers = st.builds(
    Outer,
    st.binary(max_size=8).map(Digest.of),
    inners,
    st.lists(inners, max_size=3).map(tuple),
    st.dictionaries(st.text(), values, max_size=3),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
)


@given(outers)
def test_records_are_read_as_they_were_written(record):
    data = codec.canonical(record)
    again = codec.build(Outer, codec.parse_json(data, limit=len(data), what="it"))
    assert again == record
    assert type(again.digest) is Digest
    assert codec.canonical(again) == data


@given(json_values)
def test_each_value_has_one_canonical_spelling(value):
    data = codec.canonical(value)
    assert data == codec.canonical(json.loads(data))
    if isinstance(value, dict):
        assert data == codec.canonical(dict(reversed(value.items())))


def test_canonical_bytes_never_change():
    """Digests of signed records depend on each byte."""
    record = Outer(Digest.of(b""), Inner(1, "ü\u2028"), (Inner(-2),), {"b": ["z"], "a": True}, 0.5)
    assert codec.canonical(record) == (
        b'{"anything":{},"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",'
        b'"inner":{"count":1,"name":"\xc3\xbc\xe2\x80\xa8"},"many":[{"count":-2,"name":"x"}],"maybe":0.5,'
        b'"table":{"a":true,"b":["z"]}}'
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": -float("inf")}])
def test_numbers_outside_of_json_are_refused(value):
    with pytest.raises(ValueError, match="JSON compliant"):
        codec.canonical(value)


GOOD = {"digest": "sha256:" + "0" * 64, "inner": {"count": 1}}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"digest": "x"}, r"Outer\.digest"),
        ({"digest": None}, r"Outer\.digest: missing"),
        ({"inner": None}, r"Outer\.inner: missing"),
        ({"inner": []}, r"Outer\.inner: an object"),
        ({"inner": {"count": "1"}}, r"Outer\.inner\.count: int"),
        ({"inner": {"count": True}}, r"Outer\.inner\.count: int"),
        ({"inner": {"count": 1.0}}, r"Outer\.inner\.count: int"),
        ({"many": {}}, r"Outer\.many: a list"),
        ({"many": [{"count": 1}, {}]}, r"Outer\.many\[1\]\.count: missing"),
        ({"table": {"k": [1]}}, r"Outer\.table\.k"),
        ({"table": {"k": None}}, r"Outer\.table\.k"),
        ({"maybe": "1"}, r"Outer\.maybe: float"),
    ],
)
def test_values_of_another_shape_are_refused_with_the_name_of_their_field(change, where):
    with pytest.raises(ValueError, match=where):
        codec.build(Outer, {**GOOD, **change})


def test_a_record_may_contain_records_of_its_type():
    tree = Tree("a", (Tree("b", (Tree("c"),)), Tree("d")))
    assert codec.build(Tree, json.loads(codec.canonical(tree))) == tree
    with pytest.raises(ValueError, match=r"^Tree\.branches\[1\]\.branches\[0\]\.name: str is expected"):
        codec.build(
            Tree, {"name": "a", "branches": [{"name": "b"}, {"name": "c", "branches": [{"name": 1}]}]}
        )


@dataclass(frozen=True)
class Choice:
    faster: Literal["", "compiled", "eager"] = ""


def test_a_value_that_is_no_choice_is_refused():
    assert codec.build(Choice, {"faster": "eager"}) == Choice("eager")
    for other in ("horse", 1, ["eager"]):
        with pytest.raises(ValueError, match=r"Choice\.faster: one of '', 'compiled', 'eager' is expected"):
            codec.build(Choice, {"faster": other})


def test_fields_of_a_newer_peer_are_ignored():
    assert codec.build(Outer, {**GOOD, "newer": 1}) == codec.build(Outer, GOOD)
    assert codec.build(Outer, {**GOOD, "maybe": 1}).maybe == 1.0


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"a":1,"a":2}', b"NaN", b"[Infinity]", b"\xff", b"[" * 200_000, b"1e999x", b'{"a":1}}'],
)
def test_invalid_json_is_refused(data):
    with pytest.raises(ValueError, match=r"^it: "):
        codec.parse_json(data, limit=1 << 20, what="it")


@pytest.mark.parametrize("text", ['"\\ud800"', '{"a\\uDfff":1}', '["\\ude00\\ud83d"]', '"\\\\\\udead"'])
def test_half_of_a_character_is_refused(text):
    with pytest.raises(ValueError, match=r"^it: not JSON that is accepted"):
        codec.parse_json(text.encode(), limit=100, what="it")


@pytest.mark.parametrize(
    ("text", "value"), [('"\\ud83d\\ude00"', "\U0001f600"), ('"\\\\ud800"', "\\ud800"), ('"é"', "é")]
)
def test_whole_characters_and_their_spellings_are_accepted(text, value):
    assert codec.parse_json(text.encode(), limit=100, what="it") == value


def test_json_over_its_limit_is_not_parsed():
    with pytest.raises(ValueError, match="it: 11 bytes, more than the 10 allowed"):
        codec.parse_json(b"x" * 11, limit=10, what="it")


RECORDS = [
    value
    for module in (protocol, records)
    for value in vars(module).values()
    if dataclasses.is_dataclass(value) and value.__module__ == module.__name__
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
@given(
    value=json_values
    | st.dictionaries(st.sampled_from(["name", "size", "digest", "tags", "target", "api"]), json_values)
)
def test_hostile_values_are_a_record_or_a_value_error(record, value):
    try:
        built = codec.build(record, value)
    except ValueError:
        return
    assert isinstance(built, record)


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_another_coding_than_utf_8_is_refused(coding: str) -> None:
    """In these, nothing found half of a character, and a file had two spellings."""
    for text in ('{"a":1}', '"\\ud800"'):
        with pytest.raises(ValueError, match="not JSON that is accepted"):
            codec.parse_json(text.encode(coding), limit=100, what="x")
