"""Test the components of keys: on the way through a manifest, against hostile text, and in format 1."""

from __future__ import annotations

import base64
import json
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.key_components import (
    MAX_ENCODED,
    MAX_KEYS,
    MAX_RAW,
    KeyFacts,
    combine,
    decode,
)
from cachesvc_client.wire.manifest.records import Manifest, PackRecord, Statement, Workload
from cachesvc_client.wire.names import Name, Target

GOLDEN = Path(__file__).parent.parent / "golden"
SOME = Digest.of(b"some")

texts = st.text("abcdef #123", min_size=1, max_size=20)
components = st.dictionaries(texts, texts, max_size=8)


def manifest(**more) -> Manifest:
    name = Name.parse("team/bert")
    statement = Statement(name.namespace, name.name, Target("t"), 1)
    return Manifest(statement, PackRecord(SOME, 10), (), (), {}, Workload(script=SOME), **more)


@given(st.dictionaries(texts, components, min_size=1, max_size=12))
def test_shared_components_are_stored_once_and_come_back_for_all(keys: dict[str, dict[str, str]]) -> None:
    facts = decode(combine(keys).encode())
    for key, mine in keys.items():
        for component, text in mine.items():
            assert facts.of(key)[component] == text
    for component, text in facts.shared.items():
        assert {mine.get(component, text) for mine in keys.values()} == {text}


def test_names_of_settings_stay_out_of_the_record_and_come_from_the_client() -> None:
    settings = {f"inductor_config[setting_{part}_{part * 7919}]": str(part % 3) for part in range(600)}
    few = {f"fx_kwargs[{part}]": "x" for part in range(4)}
    facts = decode(
        combine({"f1": {**settings, **few, "gm": "a"}, "f2": {**settings, **few, "gm": "b"}}).encode()
    )
    assert facts.of("f1") == {**few, "gm": "a"}
    assert facts.of("f2", settings) == {**settings, **few, "gm": "b"}
    assert "setting_" not in json.dumps(codec.plain(facts)) and len(facts.encode()) < 1000

    renamed = [*list(settings)[1:], "inductor_config[another]"]
    assert facts.of("f2", renamed) == {**few, "gm": "b"}
    one_differs = {"f1": settings, "f2": {**settings, next(iter(settings)): "other"}}
    decoded = decode(combine(one_differs).encode())
    assert {key: decoded.of(key) for key in one_differs} == one_differs


def test_components_beyond_the_bound_are_left_out() -> None:
    noise = random.Random(1)
    keys = {
        f"f{number}": {f"c{part}": f"{noise.getrandbits(400):x}" for part in range(40)}
        for number in range(MAX_KEYS)
    }
    encoded = combine(keys).encode()
    assert 0 < len(encoded) <= MAX_ENCODED
    decoded = decode(encoded)
    assert 0 < len(decoded.keys) < MAX_KEYS and all(decoded.of(key) == keys[key] for key in decoded.keys)
    assert len(combine({**keys, "one": {}, "more": {}}).keys) == MAX_KEYS
    assert KeyFacts().encode() == ""


def _packed(value: object) -> str:
    return base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not base64!",
        base64.b64encode(b"not zlib").decode(),
        base64.b64encode(zlib.compress(b"not json")).decode(),
        base64.b64encode(zlib.compress(b'{"keys": {"f": {"a": "b"}}}')[:-8]).decode(),
        base64.b64encode(zlib.compress(b" " * (MAX_RAW + 10))).decode(),
        _packed([]),
        _packed({"keys": {"f": {"a": 1}}}),
        _packed({"keys": {"f": {"a": "x" * 200}}}),
        _packed({"keys": {"f": {"a": "\x1b[2J"}}}),
        _packed({"unnamed": {"inductor_config": []}}),
        _packed({"unnamed": {"inductor_config": ["x" * 200]}}),
        _packed({"keys": {f"f{number}": {} for number in range(MAX_KEYS + 1)}}),
    ],
)
def test_hostile_text_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"key facts|KeyFacts"):
        decode(text)


def test_a_decompression_bomb_is_not_inflated() -> None:
    bomb = base64.b64encode(zlib.compress(b'{"keys": {"f": {"a": "' + b"x" * (200 << 20), 9)).decode()
    with pytest.raises(ValueError, match="key facts"):
        decode(bomb)


def test_format_1_is_read_and_written_unchanged() -> None:
    facts = KeyFacts(
        {"aone": {"grad_enabled": "True"}, "ftwo": {"gm": "another #aehtchy6ehv6"}},
        {"default_dtype": "torch.float32"},
    )
    golden = json.loads((GOLDEN / "key-facts-1.json").read_text())
    assert decode(golden["key_facts"]) == facts
    assert codec.build(Manifest, golden["manifest"]).key_facts == golden["key_facts"]
    assert decode(facts.encode()) == facts
    assert json.loads(manifest(key_facts=golden["key_facts"]).encode()) == golden["manifest"]


def test_a_manifest_without_components_is_byte_for_byte_unchanged() -> None:
    assert b"key_facts" not in manifest().encode()
    with pytest.raises(ValueError, match="key_facts"):
        manifest(key_facts="x" * (MAX_ENCODED + 1))
