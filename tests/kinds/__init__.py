"""Tests of the kinds; what all kinds must hold is in `conformance`."""

import pytest

pytest.register_assert_rewrite("tests.kinds.conformance")
