"""Test how often the updater checks signatures, and that another root makes it check again."""

from __future__ import annotations

from collections import Counter

import pytest

from cachesvc_client.trust_root.keys import MetadataKey
from cachesvc_client.trust_root.updater import Updater
from cachesvc_client.wire.errors import Untrusted
from tests.trust_root.repository import NOW, URL, Files, Repository


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each signature is checked."""
    counts: Counter[str] = Counter()
    verifies = MetadataKey.verifies

    def count(key: MetadataKey, signature: str, message: bytes) -> bool:
        counts[signature] += 1
        return verifies(key, signature, message)

    monkeypatch.setattr(MetadataKey, "verifies", count)
    return counts


def test_a_start_without_changes_checks_each_signature_once(checked: Counter[str]) -> None:
    repository, local = Repository(), Files()
    repository.refresh(local)
    checked.clear()
    updater = Updater(repository.pinned, local, URL, NOW)
    assert updater.versions() == (1, 1, 1)
    updater.refresh(repository.fetch)
    assert updater.last() is not None
    assert len(checked) == 4 and set(checked.values()) == {1}, checked


def test_a_file_that_an_earlier_root_s_key_signed_is_checked_again() -> None:
    repository, local = Repository(), Files()
    repository.refresh(local)
    updater = Updater(repository.pinned, local, URL, NOW)
    assert updater.versions() == (1, 1, 1)
    repository.set_keys("targets", 1)
    repository.publish("root")
    with pytest.raises(Untrusted, match="signed by 0 of the keys that root 2 names"):
        updater.refresh(repository.fetch)
