"""Test the kinds; `conformance` has what every kind must hold."""

import pytest

pytest.register_assert_rewrite("tests.kinds.conformance")
