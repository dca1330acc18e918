"""Test what the checks accept, and that hostile bytes end in one clear line."""

import base64
import copy
import json
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing import KEY, make_pack, sign_value, statement

from cachesvc_client.bundle.check import ExpectedStatement, check_envelope, check_pack
from cachesvc_client.bundle.seal import PublicKey, SigningKey, pae
from cachesvc_client.trust.accept import Acceptance
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, InvalidRequest, Untrusted
from cachesvc_client.wire.manifest.records import PAYLOAD_TYPE, Manifest, PackRecord, Workload
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag

EMPTY = PackRecord(Digest.of(b"x"), 16)
WANTED = ExpectedStatement(Namespace("team"), ShortName("bert"), (Tag("latest"),))
NOW = 1_700_000_100.0


def manifest(**changes):
    return Manifest(statement(**changes), EMPTY, (), (), {"torch": "2.13.0"}, Workload())


def check(envelope, trusted=(KEY.public,), expected=WANTED, now=NOW):
    return check_envelope(envelope, trusted=trusted, expected=expected, now=now)


def test_the_encoding_is_that_of_the_dsse_specification():
    # The example is from protocol.md of DSSE v1.0.
    assert pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


@given(st.binary(min_size=32, max_size=32))
def test_each_key_has_one_text(raw):
    raw = raw[:31] + bytes([raw[31] & 0x3F | 0x10])  # Weak keys, which are refused, lack these bits.
    text = "ed25519:" + base64.b64encode(raw).decode()
    assert PublicKey(text).raw == raw
    last = text[-2]
    others = [
        char for char in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/" if char != last
    ]
    same = [char for char in others if base64.b64decode(text[8:-2] + char + "=") == raw]
    for char in same:
        with pytest.raises(ValueError, match="public key"):
            PublicKey(text[:-2] + char + "=")


def test_saved_keys_are_private_and_never_overwritten(tmp_path):
    key, path = SigningKey.generate(), tmp_path / "key"
    key.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.load(path).public == key.public
    with pytest.raises(InvalidRequest, match="not overwritten"):
        SigningKey.generate().save(path)
    assert SigningKey.load(path).public == key.public
    assert key.text not in repr(key) + str(key)


@pytest.mark.parametrize(
    "text", [b"", b"nonsense", b"\xff\xfe", b"ed25519-private:AAAA", KEY.public.encode()]
)
def test_a_bad_key_file_is_one_line_without_its_content(tmp_path, text):
    (tmp_path / "key").write_bytes(text)
    with pytest.raises(InvalidRequest, match="key: ") as error:
        SigningKey.load(tmp_path / "key")
    assert "\n" not in str(error.value)
    assert "AAAA" not in str(error.value)


def test_a_missing_key_file_is_an_error(tmp_path):
    with pytest.raises(InvalidRequest, match="No such file"):
        SigningKey.load(tmp_path / "absent")


def test_a_signed_manifest_passes():
    unsigned = manifest()
    verified = check(KEY.sign(unsigned))
    assert verified.manifest == unsigned
    assert verified.revision == Digest.of(unsigned.encode())
    assert verified.signer == KEY.public


def test_order_and_space_of_the_envelope_do_not_matter():
    value = json.loads(KEY.sign(manifest()))
    turned = json.dumps(dict(reversed(value.items())), indent=2).encode()
    assert check(turned).envelope == turned


@pytest.mark.parametrize(
    ("changes", "expected", "message"),
    [
        ({"namespace": Namespace("other")}, WANTED, "signed this for other/bert"),
        ({"name": ShortName("gpt")}, WANTED, "signed this for team/gpt"),
        ({"tag": Tag("v2")}, WANTED, "wanted tag: latest"),
        ({"lane": Lane("pr-1")}, WANTED, "wanted lane: the trunk"),
        (
            {"lane": Lane("pr-1")},
            ExpectedStatement(WANTED.namespace, WANTED.name, lane=Lane("pr-2")),
            "wanted lane: pr-2",
        ),
        ({"expires": int(NOW) - 301}, WANTED, "expired 301 s ago"),
        ({"expires": int(NOW) - 301}, None, "expired"),
    ],
)
def test_a_statement_for_something_else_is_refused(changes, expected, message):
    with pytest.raises(Untrusted, match=message):
        check(KEY.sign(manifest(**changes)), expected=expected)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"expires": int(NOW) - 299}, WANTED),
        ({"tag": Tag("v2")}, ExpectedStatement(WANTED.namespace, WANTED.name)),
        ({"lane": Lane("pr-1")}, ExpectedStatement(WANTED.namespace, WANTED.name, lane=Lane("pr-1"))),
        ({}, ExpectedStatement(WANTED.namespace, WANTED.name, lane=Lane("pr-1"))),
        ({"namespace": Namespace("other"), "lane": Lane("pr-1")}, None),
    ],
)
def test_the_expected_statement_passes(changes, expected):
    assert check(KEY.sign(manifest(**changes)), expected=expected).manifest == manifest(**changes)


def test_the_error_for_an_unknown_signer_names_the_trusted_keys():
    stranger = SigningKey.generate()
    with pytest.raises(Untrusted) as error:
        check(stranger.sign(manifest()))
    assert stranger.public.keyid in str(error.value)
    assert KEY.public.keyid in str(error.value)
    with pytest.raises(Untrusted, match="no key is trusted"):
        check(KEY.sign(manifest()), trusted=[])


def test_an_unknown_signer_that_names_a_trusted_key_is_refused():
    value = json.loads(SigningKey.generate().sign(manifest()))
    value["signatures"][0]["keyid"] = KEY.public.keyid
    with pytest.raises(Untrusted, match="does not match"):
        check(json.dumps(value).encode())


def test_another_payload_type_is_refused_even_if_signed():
    with pytest.raises(Corrupt, match="payload type"):
        check(KEY.sign_bytes(manifest().encode(), "application/vnd.cachesvc.manifest.v2+json"))


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_altered_payload_passes(position, change):
    value = json.loads(KEY.sign(manifest()))
    payload = bytearray(base64.b64decode(value["payload"]))
    payload[position % len(payload)] ^= change
    value["payload"] = base64.b64encode(payload).decode()
    with pytest.raises(Untrusted, match="altered"):
        check(json.dumps(value).encode())


@pytest.mark.parametrize(
    "envelope",
    [
        b"",
        b"[]",
        b"{}",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b"[],".join([b"["] * 1_000_000),
        b'{"payload":1,"payloadType":"t","signatures":[]}',
        b'{"payload":"!","payloadType":"t","signatures":[{"keyid":"","sig":""}]}',
        b'{"payload":"","payloadType":"t","signatures":[]}',
        b'{"payload":"","payload":"","payloadType":"t","signatures":[{"keyid":"","sig":""}]}',
        b'{"payload":"","payloadType":"\\u001b[31m","signatures":[{"keyid":"","sig":""}]}',
        b'{"payload":"","payloadType":"t","signatures":[{"keyid":"","sig":"","extra":1}]}',
    ],
)
def test_bytes_that_are_no_envelope_are_one_printable_line(envelope):
    with pytest.raises(Corrupt) as error:
        check(envelope)
    assert str(error.value).isprintable()


@given(st.binary(max_size=300))
def test_random_bytes_are_corrupt(data):
    with pytest.raises(Corrupt):
        check(data)


PLAIN = json.loads(manifest().encode())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value, path=()):
    """List every place in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def replace_at(value, path, new):
    if not path:
        return new
    value = copy.copy(value)
    value[path[0]] = replace_at(value[path[0]], path[1:], new)
    return value


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return json.loads(make_pack(tmp_path_factory.mktemp("pack"))[1].encode())


@settings(max_examples=400)
@given(st.data())
def test_hostile_signed_manifests_end_in_one_line_or_are_valid(full, data):
    value = full
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(places(value))))
        value = replace_at(value, path, data.draw(JSON))
    try:
        verified = check(sign_value(value), expected=None)
    except Untrusted as error:
        refusal = str(error)
    else:
        refusal = ""
    assert refusal.isprintable()
    if refusal:
        return
    # A manifest that passed can be written again and has a key, and its files lie inside its pack.
    assert verified.manifest.encode()
    assert verified.manifest.entry
    end = max((frame.offset + frame.size for frame in verified.manifest.frames), default=16)
    assert end == verified.manifest.pack.size


def _deep(levels):
    value = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("workload", "inputs"), _deep(400)),
        (("measured",), {"compile": float("inf")}),
        (("measured",), {"compile": float("nan")}),
        (("provenance",), {"host": "\ud800"}),
        (("fingerprint",), {"unknown": "\ud800"}),
        (("frames", 0, "offset"), 0),
        (("frames", 0, "size"), 1),
        (("frames", 0, "raw"), 1 << 40),
        (("frames", 0, "raw"), True),
        (("files", 0, "path"), "../../etc/passwd"),
        (("files", 0, "path"), "/etc/passwd"),
        (("files", 0, "path"), "a/.cachesvc/b"),
        (("files", 0, "path"), "a//b"),
        (("files", 0, "path"), "a\nb"),
        (("files", 0, "path"), "cd"),
        (("files", 0, "path"), "cd/ccd.py"),
        (("files", 0, "mode"), 0o4755),
        (("files", 0, "size"), 1 << 50),
        (("files", 0, "offset"), 1 << 50),
        (("files", 0, "frame"), 7),
        (("files", 0, "kind"), "../x"),
        (("pack", "size"), 1 << 60),
        (("pack", "format"), "cachesvc.pack/2"),
        (("format",), "cachesvc.manifest/2"),
        (("statement", "sequence"), 1 << 60),
    ],
)
def test_each_limit_of_a_signed_manifest_is_checked(full, place, value):
    with pytest.raises(Corrupt) as error:
        check(sign_value(replace_at(full, place, value)), expected=None)
    assert str(error.value).isprintable()


def test_the_number_of_files_with_one_content_is_limited(full):
    # Otherwise 60,000 names for one large content would fill a disk from a small pack.
    frames = [{"offset": 16, "size": 100, "raw": 4 << 20, "digest": "sha256:" + "0" * 64}]
    file = {"kind": "inductor", "size": 4 << 20, "digest": "sha256:" + "0" * 64, "frame": 0, "offset": 0}
    files = [{**file, "path": f"f{index}"} for index in range(200)]
    value = {**full, "frames": frames, "files": files, "pack": {**full["pack"], "size": 116}}
    with pytest.raises(Corrupt, match="bytes in all files"):
        check(sign_value(value), expected=None)


def test_an_older_sequence_is_refused():
    class Record:
        def __init__(self, highest: int | None) -> None:
            self.highest = highest

        def sequences(self, _entry: object) -> dict[str, int]:
            return {} if self.highest is None else {KEY.public: self.highest}

    envelope = KEY.sign(manifest(sequence=50))
    for highest in (None, 50):
        Acceptance([KEY.public]).accept_signed(envelope, None, Record(highest))
    with pytest.raises(Untrusted, match="older than 51"):
        Acceptance([KEY.public]).accept_signed(envelope, None, Record(51))


def test_a_pack_must_have_size_and_digest(tmp_path):
    path, manifest = make_pack(tmp_path)
    check_pack(path, manifest)
    whole = path.read_bytes()
    for altered in (whole[:-1], whole + b"x", whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        path.write_bytes(altered)
        with pytest.raises(Corrupt, match="pack: "):
            check_pack(path, manifest)


def test_payload_type_is_versioned():
    assert PAYLOAD_TYPE.endswith(".v1+json")
