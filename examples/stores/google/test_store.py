"""Test the store by cachesvc's kit, in the bucket that ``CACHESVC_TEST_GOOGLE`` names by its URL."""

from __future__ import annotations

import os

import pytest

from cachesvc.blobs import testing
from cachesvc.blobs.schemes import open_by_url
from cachesvc.blobs.store import BlobStore


@pytest.fixture(scope="module")
def store() -> BlobStore:
    return open_by_url(os.environ["CACHESVC_TEST_GOOGLE"])


@pytest.mark.parametrize("check", testing.CHECKS, ids=lambda check: check.__name__)
def test_the_contract_holds(store: BlobStore, check: testing.Check) -> None:
    testing.run(store, check)


@pytest.mark.parametrize("check", testing.LINK_CHECKS, ids=lambda check: check.__name__)
def test_the_contract_of_links_holds(store, check) -> None:
    testing.run_links(store, store, check)
