"""Test that docs/keys.md shows the factor table, and that the table has every factor."""

from __future__ import annotations

import pytest

from cachesvc_client.environment.detect import detect
from cachesvc_client.wire.factors import BY_NAME, FACTORS
from tools import keys


def test_the_document_is_generated_from_the_table():
    assert keys.DOCUMENT.read_text() == keys.render(), "run `make keys`"


@pytest.mark.parametrize("factor", FACTORS, ids=lambda factor: factor.name)
def test_every_factor_is_in_the_document_once(factor):
    assert keys.render().count(f"| `{factor.name}` |") == 1


def test_every_factor_of_detect_belongs_to_the_environment():
    assert all(BY_NAME[name].group == "environment" for name in detect() if name != "schema")
