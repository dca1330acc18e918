"""Define fixtures for the tests of HTTP."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    """Remove the proxies of this machine from the environment."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
