"""docs/keys.md is what the factor table says, and the table is all that reads and writes factors."""

from __future__ import annotations

import pytest

from cachesvc_client.environment.detect import detect
from cachesvc_client.wire.factors import BY_NAME, FACTORS
from tools import keys


def test_the_document_is_made_from_the_table():
    assert keys.DOCUMENT.read_text() == keys.render(), "run `make keys`"


@pytest.mark.parametrize("factor", FACTORS, ids=lambda factor: factor.name)
def test_every_factor_is_in_it_once(factor):
    assert keys.render().count(f"| `{factor.name}` |") == 1


def test_what_detect_finds_is_of_the_environment():
    assert all(BY_NAME[name].group == "environment" for name in detect() if name != "schema")
