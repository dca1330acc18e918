"""Test claims against answers that a registry seldom gives. Real processes test the usual answers in
`e2e.test_fleet` and `warm.test_claims`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from cachesvc_client.claims import acquire
from cachesvc_client.claims.acquire import acquire_or_wait
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import ClaimLost, Corrupt, Forbidden, Unavailable
from cachesvc_client.wire.names import Namespace, ShortName
from cachesvc_client.wire.requests.claims import (
    ClaimAnswer,
    ClaimRef,
    ClaimRelease,
    ClaimRequest,
    ClaimSubject,
)

SUBJECT = ClaimSubject(Namespace("team"), ShortName("m"), Digest.of(b"here"))
REQUEST = ClaimRequest(SUBJECT, "a" * 32, "me")
KEY = SUBJECT.key
YOURS = ClaimAnswer("yours", KEY, fence=7, left=3)
HELD = ClaimAnswer("held", KEY, fence=6, left=3, age=12, who="ci run 7")
PUBLISHED = ClaimAnswer("published", KEY, fence=6)


class Script:
    """Stands for a registry that answers claims in this order, the last answer for ever, and renewals
    likewise."""

    def __init__(self, *answers: Any, renewals: tuple[Any, ...] = (YOURS,)) -> None:
        self.answers, self.renewals = list(answers), list(renewals)
        self.waits: list[float] = []
        self.seen: list[int] = []
        self.renewed: list[ClaimRef] = []
        self.released: list[ClaimRelease] = []

    def take(self, request: ClaimRequest, deadline: float) -> ClaimAnswer:
        assert request.holder == REQUEST.holder and deadline > time.monotonic() + request.wait
        self.waits.append(request.wait)
        self.seen.append(request.seen)
        return self._next(self.answers)

    def renew(self, claim: ClaimRef, deadline: float) -> ClaimAnswer:
        assert deadline > time.monotonic()
        self.renewed.append(claim)
        return self._next(self.renewals)

    def release(self, request: ClaimRelease, deadline: float) -> None:
        assert deadline > time.monotonic()
        self.released.append(request)

    @staticmethod
    def _next(answers: list[Any]) -> Any:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def nothing() -> None:
    return None


def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acquire, "_PAUSE_SECONDS", 0.05)


@pytest.fixture(autouse=True)
def of_no_python_process(monkeypatch):
    """These tests run in children of pytest; a process whose parent runs Python asks first and waits then."""
    monkeypatch.setattr(acquire, "_describe_ancestors", frozenset)


def acquire_from(script: Script, look: Callable[[], Any] = nothing, **more: Any) -> Any:
    return acquire_or_wait(script, REQUEST, look, **{"patience": lambda: 60.0, **more})


def test_a_refusal_is_reported_and_the_request_not_repeated() -> None:
    script = Script(Forbidden("may only read"))
    assert acquire_from(script, outage_seconds=60).why == "may only read"
    assert len(script.waits) == 1


def test_an_outage_is_waited_for_as_long_as_allowed() -> None:
    script = Script(Unavailable("down"), Unavailable("down"), HELD, PUBLISHED)
    assert acquire_from(script, lambda: "it", outage_seconds=60).result == "it"
    script = Script(Unavailable("down"))
    assert acquire_from(script).why == "down" and len(script.waits) == 1
    assert acquire_from(Script(Unavailable("down")), outage_seconds=0.3).why == "down"


def test_an_outage_begins_when_the_registry_ends_a_wait_and_not_with_the_wait() -> None:
    class Killed(Script):
        def take(self, request: ClaimRequest, deadline: float) -> ClaimAnswer:
            if not self.waits:
                time.sleep(0.4)  # the first request waits at the registry, which is killed then
            return super().take(request, deadline)

    script = Killed(Unavailable("closed the connection"), PUBLISHED)
    assert acquire_from(script, lambda: "it", outage_seconds=0.3).result == "it"


def test_a_waiting_client_learns_the_holder_until_its_patience_is_over() -> None:
    begin, answers = time.monotonic(), []
    outcome = acquire_from(
        Script(HELD), on_wait=answers.append, patience=lambda: begin + 0.5 - time.monotonic()
    )
    assert outcome.why == "ci run 7 still compiles it, for 12 s now"
    assert time.monotonic() - begin < 2
    assert set(answers) == {HELD}
    script = Script(HELD)
    acquire_from(script, patience=lambda: 0.0)
    assert script.waits == [0.0], "the client asked once, without waiting"
    script = Script(HELD, PUBLISHED)
    acquire_from(script, lambda: "it", poll_seconds=5)
    assert script.waits == [5, 5]


def test_a_client_that_the_registry_does_not_let_wait_asks_less_and_less_often() -> None:
    """Of a fleet of 1,000 each asked once a second, and the registry did nothing else."""
    begin, script = time.monotonic(), Script(HELD)
    acquire_from(script, patience=lambda: begin + 1.0 - time.monotonic())
    assert 4 <= len(script.waits) <= 14, "20 with pauses of one length"


def test_a_claim_is_released_as_done_if_its_lookup_finds_the_entry() -> None:
    script = Script(YOURS)
    outcome = acquire_from(script, lambda: "it")
    assert (outcome.result, outcome.claim) == ("it", None)
    assert script.released == [ClaimRelease(ClaimRef(KEY, "a" * 32, 7), done=True)]


def test_a_claim_is_released_if_its_lookup_fails() -> None:
    script = Script(YOURS)

    def look() -> None:
        raise Corrupt("damaged")

    with pytest.raises(Corrupt):
        acquire_from(script, look)
    assert [request.done for request in script.released] == [False]


def test_a_publication_may_become_visible_late_or_never(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([None, None, "it"])
    assert acquire_from(Script(PUBLISHED), lambda: next(looks)).result == "it"
    monkeypatch.setattr(acquire, "RESOLVED_SECONDS", 0.2)
    script = Script(PUBLISHED, HELD, YOURS)
    outcome = acquire_from(script)
    assert outcome.result is None and outcome.claim.commit_ref is not None, (
        "the entry is of no use here, so it is claimed"
    )
    assert script.seen == [0, PUBLISHED.fence, PUBLISHED.fence]
    outcome.claim.release()


def test_a_rank_that_does_not_lead_holds_no_claim() -> None:
    script = Script(YOURS)
    outcome = acquire_from(script, leads=False)
    assert (outcome.result, outcome.claim) == (None, None)
    assert acquire_from(script, lambda: "it", leads=False).result == "it"
    assert script.released == []


def test_a_claim_is_renewed_until_it_is_released() -> None:
    script = Script(YOURS, renewals=(YOURS, Unavailable("down"), YOURS))
    claim = acquire_from(script).claim
    until(lambda: len(script.renewed) >= 4)
    assert set(script.renewed) == {claim.ref} and claim.commit_ref == claim.ref and not claim.lost
    claim.release()
    claim.release()
    assert [request.claim for request in script.released] == [claim.ref]
    assert claim.commit_ref is None, "a commit goes by the head alone then"
    before = len(script.renewed)
    time.sleep(1.5)
    assert len(script.renewed) <= before + 1


def test_a_lost_claim_is_still_shown_and_not_released() -> None:
    script = Script(YOURS, renewals=(ClaimLost("was taken over"),))
    claim = acquire_from(script).claim
    until(lambda: claim.lost)
    assert claim.commit_ref == claim.ref, "the registry says why it refuses"
    claim.release()
    assert script.released == [] and len(script.renewed) == 1


def test_a_claim_without_a_publication_is_released_after_a_while() -> None:
    script = Script(YOURS)
    claim = acquire_from(script, hold_seconds=1.0).claim
    until(lambda: bool(script.released))
    assert claim.commit_ref is None


def test_a_forked_child_neither_shows_nor_releases_the_claim() -> None:
    script = Script(YOURS)
    claim = acquire_from(script).claim
    child = os.fork()
    if child == 0:
        claim.release()
        os._exit(0 if claim.commit_ref is None and not script.released else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert claim.commit_ref is not None
    claim.release()


def test_the_process_that_asks_is_described_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in acquire._RUN_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert acquire.describe_this_process() == f"{os.uname().nodename}, process {os.getpid()}"
    monkeypatch.setenv("GITHUB_RUN_ID", "77\n7")
    assert acquire.describe_this_process() == f"{os.uname().nodename}, run 777, process {os.getpid()}"
    monkeypatch.setenv("GITHUB_RUN_ID", "7" * 200)
    assert len(acquire.describe_this_process()) == 100


ENDS_WITH_CLAIMS = """
import os
from cachesvc_client.claims.claim import Claim
from cachesvc_client.wire.requests.claims import ClaimAnswer
from cachesvc_client.wire.digest import Digest

class Printer:
    def release(self, request, deadline):
        print(request.claim.holder[0], request.done, flush=True)

def claim(holder):
    return Claim(Printer(), ClaimAnswer("yours", Digest.of(b"key"), fence=1, left=600), holder * 32)

kept, given_back, committed = claim("a"), claim("b"), claim("c")
given_back.release(done=True)
committed.published()
if os.fork() == 0:
    raise SystemExit
os.wait()
"""


def test_a_process_that_ends_releases_its_claims_and_its_child_releases_none() -> None:
    result = subprocess.run(
        [sys.executable, "-c", ENDS_WITH_CLAIMS], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines() == ["b True", "a False"], result.stderr
