"""What a service sees of cachesvc's warnings after it has configured its logging."""

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
    """The lines of a service that attaches, then configures its logging, then compiles something."""
    restored = "session.wait(30)" if wait else ""
    mark = "print('---', file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join((ATTACH, restored, mark, configure, program))],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.partition("---\n")[2].splitlines()


DISABLE = "logging.config.dictConfig(settings); assert other.disabled"
WARNING = "team/x: compiled here after a restore (2 compilations so far)"


def test_a_configuration_that_disables_all_loggers_hides_no_warning(tmp_path) -> None:
    said = lines(tmp_path, DISABLE)
    assert said[0].startswith(WARNING), said
    assert lines(tmp_path, DISABLE + "\nlogging.config.dictConfig(settings)")[0].startswith(WARNING)


def test_a_restore_that_fails_after_it_says_so(tmp_path) -> None:
    """The restore waits for its configuration, a pipe, until the logging is configured."""
    (tmp_path / ".config" / "cachesvc").mkdir(parents=True)
    os.mkfifo(tmp_path / ".config" / "cachesvc" / "login.json", 0o600)
    write = "open(os.environ['HOME'] + '/.config/cachesvc/login.json', 'w').close()"
    said = lines(tmp_path, f"{DISABLE}\n{write}\nsession.wait(30)", "", wait=False)
    assert len(said) == 1 and "not restored, this process compiles" in said[0], said


@pytest.mark.parametrize(
    "policy",
    [
        f"settings['loggers'] = {{'cachesvc': {{'level': 'CRITICAL'}}}}; {DISABLE}",
        f"settings['root']['level'] = 'ERROR'; {DISABLE}",
        "logging.basicConfig(level='INFO'); logging.getLogger('cachesvc').disabled = True",
    ],
)
def test_a_service_that_does_not_want_the_warning_does_not_get_it(tmp_path, policy) -> None:
    assert lines(tmp_path, policy) == []


def test_the_line_of_a_hit_stays_hidden_unless_it_is_asked_for(tmp_path) -> None:
    hit = COMPILED.replace('OutcomeLog().say(Report("partial"', '0 and OutcomeLog().say(Report("partial"')
    assert lines(tmp_path, DISABLE, hit) == []
    [line] = [one for one in lines(tmp_path, DISABLE, hit, CACHESVC_LOG="info") if "hit" in one]
    assert line.startswith("cachesvc: team/x: hit: nothing compiled"), line
