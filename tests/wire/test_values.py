"""Test names, digests and errors: which values may exist."""

from __future__ import annotations

import copy
import hashlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesvc_client.wire import errors
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import LATEST, Lane, Name, Namespace, ShortName, Tag, Target


@given(st.lists(st.binary(max_size=64), max_size=6))
def test_a_digest_is_a_sha256(chunks):
    whole = b"".join(chunks)
    digest = Digest.of_chunks(chunks)
    assert digest == Digest.of(whole) == "sha256:" + hashlib.sha256(whole).hexdigest()
    assert digest.hex == hashlib.sha256(whole).hexdigest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256:",
        "sha256:" + "0" * 63,
        "sha256:" + "A" * 64,
        "md5:" + "0" * 64,
        "sha256:" + "0" * 64 + "\n",
        5,
        None,
        b"x",
    ],
)
def test_malformed_digests_are_refused(text):
    with pytest.raises(ValueError, match="not a digest"):
        Digest(text)


def test_values_are_text_and_survive_copying():
    digest = Digest.of(b"x")
    assert isinstance(digest, str)
    for other in (copy.copy(digest), copy.deepcopy(digest), pickle.loads(pickle.dumps(digest))):
        assert other == digest
        assert type(other) is Digest


PART = st.from_regex(Namespace.pattern, fullmatch=True)


@given(PART, st.from_regex(ShortName.pattern, fullmatch=True), st.from_regex(Tag.pattern, fullmatch=True))
def test_names_are_read_as_they_are_written(namespace, name, tag):
    parsed = Name.parse(f"{namespace}/{name}:{tag}")
    assert (parsed.namespace, parsed.name, parsed.tag) == (namespace, name, tag)
    assert Name.parse(str(parsed)) == parsed


def test_the_tag_is_latest_by_default():
    assert Name.parse("team/group/bert") == Name(Namespace("team"), ShortName("group/bert"), LATEST)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bert",
        "/bert",
        "team/",
        "team/bert:",
        "Team/bert",
        "team/../x",
        "team/a//b",
        "team/bert:a:b",
        "team/a b",
        "team/a/",
        "te\u0430m/bert",
        "team/bert\n",
        "team/.bert",
        "team/bert:-x",
        "team/" + "/".join("a" * 9),
    ],
)
def test_malformed_names_are_refused(text):
    with pytest.raises(ValueError, match="not a"):
        Name.parse(text)


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_a_value_error(text):
    for kind in (Digest, Namespace, ShortName, Tag, Target, Lane):
        try:
            value = kind(text)
        except ValueError:
            continue
        assert value == text
        assert "\n" not in value
        assert ".." not in value.split("/")


@pytest.mark.parametrize("kind", errors.ALL.values())
def test_errors_survive_the_wire(kind):
    error = kind("what and where", "how to fix")
    again = errors.from_wire(error.status, errors.to_wire(error))
    assert type(again) is kind
    assert str(again) == str(error) == "what and where (how to fix)"


def test_codes_are_unique_and_statuses_are_errors():
    def below(kind):
        return {kind}.union(*map(below, kind.__subclasses__()))

    ours = {kind for kind in below(errors.CacheSvcError) if kind.__module__ == errors.__name__}
    assert set(errors.ALL.values()) == ours
    assert all(400 <= kind.status < 600 and 0 < kind.exit_status < 126 for kind in ours)


@given(
    st.integers(100, 999),
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: (
            st.dictionaries(st.sampled_from(["error", "code", "message", "hint"]), inner) | st.lists(inner)
        ),
    ),
)
def test_any_answer_becomes_an_error(status, body):
    error = errors.from_wire(status, body)
    assert isinstance(error, errors.CacheSvcError)
    assert len(str(error)) < 1200
    if not isinstance(body, dict) and status in (408, 425, 429, 500, 502, 503, 504):
        assert error.retry


def test_each_tag_is_tried_once_and_the_names_own_tag_first():
    tags = Name.parse("team/bert:v3").tags((Tag("latest"), Tag("v3"), Tag("latest")))
    assert tags == (Tag("v3"), Tag("latest"))
