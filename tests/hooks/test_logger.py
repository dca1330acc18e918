"""Test what a service sees of cachesvc's warnings after the service has configured its logging."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ATTACH = """
import logging, logging.config, os, sys
import cachesvc_client
settings = {"version": 1, "handlers": {"console": {"class": "logging.StreamHandler"}},
            "root": {"level": "INFO", "handlers": ["console"]}}
other = logging.getLogger("other")
session = cachesvc_client.attach()
"""
COMPILED = """
from cachesvc_client.hooks.counters import Observation
from cachesvc_client.outcome.judge import Report, RevisionUse
from cachesvc_client.outcome.log import OutcomeLog
use = RevisionUse("team/x", "t", "sha256:" + "0" * 64, 1, 1, 0)
seen = Observation(compilations=2)
OutcomeLog().say(Report("partial", (), seen, (use,)), "team/x", "compiled")
OutcomeLog().say(Report("hit", (), Observation(), (use,)), "team/x", "compiled")
"""


def lines(
    tmp_path, configure: str, program: str = COMPILED, *, wait: bool = True, **variables: str
) -> list[str]:
    """Return the log lines of a service that attaches, then configures its logging, then compiles
    something."""
    restored = "session.wait(30)" if wait else ""
    mark = "print('---', file=sys.stderr)"
    result = subprocess.run(
        [sys.executable, "-c", "\n".join((ATTACH, restored, mark, configure, program))],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stderr.partition("---\n")[2].splitlines()


DISABLE = "logging.config.dictConfig(settings); assert other.disabled"
WARNING = "team/x: compiled here after a restore (2 compilations so far)"


def test_a_configuration_that_disables_all_loggers_hides_no_warning(tmp_path) -> None:
    output = lines(tmp_path, DISABLE)
    assert output[0].startswith(WARNING), output
    assert lines(tmp_path, DISABLE + "\nlogging.config.dictConfig(settings)")[0].startswith(WARNING)


def test_a_restore_that_fails_after_the_configuration_of_logging_warns(tmp_path) -> None:
    """The restore reads its configuration from a pipe, so it waits until logging is configured."""
    (tmp_path / ".config" / "cachesvc").mkdir(parents=True)
    os.mkfifo(tmp_path / ".config" / "cachesvc" / "login.json", 0o600)
    write = "open(os.environ['HOME'] + '/.config/cachesvc/login.json', 'w').close()"
    output = lines(tmp_path, f"{DISABLE}\n{write}\nsession.wait(30)", "", wait=False)
    assert len(output) == 1 and "not restored, this process compiles" in output[0], output


@pytest.mark.parametrize(
    "policy",
    [
        f"settings['loggers'] = {{'cachesvc': {{'level': 'CRITICAL'}}}}; {DISABLE}",
        f"settings['root']['level'] = 'ERROR'; {DISABLE}",
        "logging.basicConfig(level='INFO'); logging.getLogger('cachesvc').disabled = True",
    ],
)
def test_a_service_that_filters_the_warning_out_does_not_get_it(tmp_path, policy) -> None:
    assert lines(tmp_path, policy) == []


def test_the_line_of_a_hit_is_hidden_unless_the_level_shows_it(tmp_path) -> None:
    hit = COMPILED.replace('OutcomeLog().say(Report("partial"', '0 and OutcomeLog().say(Report("partial"')
    assert lines(tmp_path, DISABLE, hit) == []
    [line] = [one for one in lines(tmp_path, DISABLE, hit, CACHESVC_LOG="info") if "hit" in one]
    assert line.startswith("cachesvc: team/x: hit: nothing compiled"), line
