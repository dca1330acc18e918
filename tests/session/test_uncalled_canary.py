"""Test when a process says that a restored graph was not called through the canary: not between the compile
and the first call of that graph, which may be seconds on a busy machine."""

from __future__ import annotations

import logging
import time

import pytest

from cachesvc_client.process.process import Process
from cachesvc_client.session.sessions import Sessions

LINE = "canary: 1 restored graphs were not called through the canary: nothing of them was compared"


def test_the_canary_is_judged_when_the_process_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    sessions = Sessions(Process())
    sessions.canary._uncalled.add(object())
    with caplog.at_level(logging.WARNING, "cachesvc"):
        sessions.reporting.paused("compiled", time.monotonic() + 5)
        assert caplog.messages == []
        for _ in range(2):
            sessions.reporting.paused("quiet", time.monotonic() + 5)
    assert caplog.messages.count(LINE) == 1
    assert (
        LINE in sessions.reporting.report().reasons
        and LINE not in sessions.reporting.report("compiled").reasons
    )
