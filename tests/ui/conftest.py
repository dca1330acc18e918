"""Serve one registry with everything that the pages show, for the tests that change nothing there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cachesvc.ui.open_routes import LOGIN_SECONDS

from .provider import Provider, let_people_in, running_provider
from .site import Site, site


@pytest.fixture(scope="session")
def session_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site")) as one:
        yield one


@pytest.fixture
def shared_site(session_site: Site) -> Site:
    """Return the one registry, some seconds later: the logins of other tests do not count any more."""
    session_site.inside.clock.now += LOGIN_SECONDS + 1
    return session_site


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[Site]:
    """Serve a registry of the test's own."""
    with site(tmp_path) as one:
        yield one


@pytest.fixture(scope="module")
def running(session_site: Site) -> Iterator[Provider]:
    with running_provider(session_site.inside.clock) as provider:
        yield provider


@pytest.fixture
def provider(running: Provider, shared_site: Site) -> Iterator[Provider]:
    """Return a provider that behaves, at which people log in to the shared registry."""
    running.behave()
    let_people_in(shared_site, running)
    yield running
    object.__setattr__(shared_site.inside.registry.outside, "login", None)
