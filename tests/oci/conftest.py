"""Give a signing key, bundles of it, and a registry that lies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey

from .bundles import make_bundle
from .lying_registry import LyingRegistry, lying_registry


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def bundle(tmp_path: Path, key: SigningKey) -> Path:
    return make_bundle(tmp_path, key)


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LyingRegistry]:
    """Serve a registry that lies, for a user without a docker configuration."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with lying_registry() as registry:
        yield registry
