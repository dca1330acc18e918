"""Test how seconds are shown to people."""

from __future__ import annotations

import pytest

from cachesvc_client.wire.durations import duration_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.00123, "1.23 ms"),
        (0.0491, "49.1 ms"),
        (0.9996, "1.0 s"),
        (12.34, "12.3 s"),
        (-0.5, "-500 ms"),
        (119, "119.0 s"),
        (121, "2.0 min"),
        (9000, "2.5 h"),
        (400_000, "4.6 d"),
    ],
)
def test_a_duration_has_the_unit_that_shows_it(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
