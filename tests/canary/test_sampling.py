"""Test which starts are in the sample of a canary: one draw for a start, the same for its children and for
the ranks of a job."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from cachesvc_client.canary.sampling import draw_of_job, is_sampled
from cachesvc_client.config.settings import Config
from cachesvc_client.environment.variables import CanarySetting, obsolete_line, parse_canary
from cachesvc_client.ranks import job as jobs
from cachesvc_client.ranks.job import Job
from cachesvc_client.session.canary_watch import CanaryWatch
from cachesvc_client.session.options import AttachOptions
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest


def bytes_of(number):
    return lambda count: number.to_bytes(count, "big")


def sessions_of(setting):
    """Return one session with a restored revision."""
    result = SimpleNamespace(installed=["revision"])
    return [SimpleNamespace(config=SimpleNamespace(canary=setting), result=result)]


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("0", CanarySetting()),
        ("off", CanarySetting()),
        ("1", CanarySetting(1)),
        ("sample", CanarySetting(100, beside=True)),
        (" Sample:7 ", CanarySetting(7, beside=True)),
        ("sample:1", CanarySetting(1, beside=True)),
    ],
)
def test_values_of_the_variable(text, setting):
    assert Config.read({"CACHESVC_CANARY": text}).canary == setting
    assert obsolete_line({"CACHESVC_CANARY": text}) is None


@pytest.mark.parametrize(
    "text", ["sample:0", "sample:-1", "sample:", "sample:1e3", "2", "smaple", "sample:1,5"]
)
def test_a_wrong_value_is_one_line_and_no_canary(text):
    assert Config.read({"CACHESVC_CANARY": text}).canary == CanarySetting()
    line = obsolete_line({"CACHESVC_CANARY": text})
    assert line is not None and line.startswith(f"CACHESVC_CANARY={text!r} does nothing, and no canary runs")
    assert "allowed: 0, 1, sample or sample:N" in line and "\n" not in line
    with pytest.raises(ValueError, match="allowed: 0, 1, sample"):
        parse_canary(text)


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        (None, CanarySetting(7, True)),
        (True, CanarySetting(1)),
        (False, CanarySetting()),
        ("sample:3", (3, True)),
    ],
)
def test_an_argument_of_attach_counts_before_the_variable(option, setting):
    config = Config.read({"CACHESVC_CANARY": "sample:7"})
    assert AttachOptions(canary=option).over(config).canary == setting


def test_a_wrong_argument_of_attach_is_refused():
    with pytest.raises(InvalidRequest, match="attach: allowed: 0, 1, sample"):
        AttachOptions(canary="often").over(Config())


def test_a_draw_decides():
    setting = CanarySetting(100, beside=True)
    assert sum(is_sampled(setting, drawn) for drawn in range(1000)) == 10
    assert not is_sampled(CanarySetting(), 0) and is_sampled(CanarySetting(1), 12345)


def test_starts_draw_different_numbers():
    setting = CanarySetting(10, beside=True)
    starts = [CanaryWatch(None, sessions_of(setting)) for _ in range(1000)]
    assert 50 < sum(bool(list(start._under_canary())) for start in starts) < 200


def watch_of(setting, *numbers):
    """Return a canary whose draws are ``numbers``, in order."""
    left = list(numbers)
    return CanaryWatch(None, sessions_of(setting), lambda count: bytes_of(left.pop(0))(count))


def test_a_start_draws_once():
    setting = CanarySetting(100, beside=True)
    chosen, other = watch_of(setting, 200), watch_of(setting, 201)
    for _ in range(2):
        assert list(chosen._under_canary()) and not list(other._under_canary())


def test_forked_children_take_over_the_draw():
    watch = watch_of(CanarySetting(100, beside=True), 200)
    watch.armed()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if list(watch._under_canary()) else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_ranks_of_a_job_agree_and_jobs_differ(monkeypatch):
    keys = [Digest.of(bytes([number])) for number in range(200)]
    draws = [draw_of_job(Job(0, 2, 0, 2, key)) for key in keys]
    assert draws == [draw_of_job(Job(1, 2, 1, 2, key)) for key in keys] and len(set(draws)) == 200
    setting = CanarySetting(3, beside=True)
    monkeypatch.setattr(jobs, "_joined", [Job(0, 2, 0, 2, keys[0])])
    expected = is_sampled(setting, draws[0])
    assert bool(list(watch_of(setting, 0, 0)._under_canary())) is expected
    assert bool(list(watch_of(setting, 1, 1)._under_canary())) is expected
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert draw_of_job(Job(0, 2, 0, 2, keys[0])) != draws[0], "the next start of the same job draws anew"


def test_a_session_whose_canary_is_in_the_call_decides_for_all():
    watch = watch_of(CanarySetting(1), 0)
    sessions = watch._sessions
    assert not watch._is_beside()
    sessions.append(SimpleNamespace(config=SimpleNamespace(canary=CanarySetting(5, True)), result=None))
    assert not watch._is_beside()
    del sessions[0]
    assert watch._is_beside()
