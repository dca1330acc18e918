"""Test the kinds; `cachesvc_client.kinds.testing` has what every kind must hold."""

import pytest

pytest.register_assert_rewrite("cachesvc_client.kinds.testing")
