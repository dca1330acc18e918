"""Tests claims against answers that a registry seldom gives. Real processes test the usual answers:
`e2e.test_turns`, `warm.test_claims`."""

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
from cachesvc_client.wire.claims import ClaimAnswer, ClaimRef, ClaimRelease, ClaimRequest, ClaimSubject
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import ClaimLost, Corrupt, Forbidden, NotFound, Unavailable
from cachesvc_client.wire.names import Namespace, ShortName

SUBJECT = ClaimSubject(Namespace("team"), ShortName("m"), Digest.of(b"here"))
REQUEST = ClaimRequest(SUBJECT, "a" * 32, "me")
KEY = SUBJECT.key
YOURS = ClaimAnswer("yours", KEY, fence=7, left=3)
HELD = ClaimAnswer("held", KEY, fence=6, left=3, age=12, who="ci run 7")
PUBLISHED = ClaimAnswer("published", KEY, fence=6)


class Script:
    """A registry that answers claims in this order, the last one for ever; and renewals likewise."""

    def __init__(self, *answers: Any, renewals: tuple[Any, ...] = (YOURS,)) -> None:
        self.answers, self.renewals = list(answers), list(renewals)
        self.waits: list[float] = []
        self.seen: list[int] = []
        self.renewed: list[ClaimRef] = []
        self.released: list[ClaimRelease] = []

    def claim(self, request: ClaimRequest, deadline: float) -> ClaimAnswer:
        assert request.holder == REQUEST.holder and deadline > time.monotonic() + request.wait
        self.waits.append(request.wait)
        self.seen.append(request.seen)
        return self._next(self.answers)

    def renew_claim(self, claim: ClaimRef, deadline: float) -> ClaimAnswer:
        assert deadline > time.monotonic()
        self.renewed.append(claim)
        return self._next(self.renewals)

    def release_claim(self, request: ClaimRelease, deadline: float) -> None:
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


def taken(script: Script, look: Callable[[], Any] = nothing, **more: Any) -> Any:
    return acquire_or_wait(script, REQUEST, look, **{"patience": lambda: 60.0, **more})


def test_a_registry_from_before_there_were_claims_is_nothing_to_tell_of() -> None:
    done = taken(Script(NotFound("there is no /v1/claims")))
    assert (done.result, done.claim, done.why) == (None, None, "")


def test_a_refusal_is_told_and_not_repeated() -> None:
    script = Script(Forbidden("may only read"))
    assert taken(script, outage_seconds=60).why == "may only read"
    assert len(script.waits) == 1


def test_an_outage_is_waited_for_as_long_as_is_allowed() -> None:
    script = Script(Unavailable("down"), Unavailable("down"), HELD, PUBLISHED)
    assert taken(script, lambda: "it", outage_seconds=60).result == "it"
    script = Script(Unavailable("down"))
    assert taken(script).why == "down" and len(script.waits) == 1
    assert taken(Script(Unavailable("down")), outage_seconds=0.3).why == "down"


def test_who_is_waited_for_is_told_until_patience_is_over() -> None:
    begin, told = time.monotonic(), []
    done = taken(Script(HELD), on_wait=told.append, patience=lambda: begin + 0.5 - time.monotonic())
    assert done.why == "ci run 7 still compiles it, for 12 s now"
    assert time.monotonic() - begin < 2
    assert set(told) == {HELD}
    script = Script(HELD)
    taken(script, patience=lambda: 0.0)
    assert script.waits == [0.0], "asked once, without waiting"
    script = Script(HELD, PUBLISHED)
    taken(script, lambda: "it", poll_seconds=5)
    assert script.waits == [5, 5]


def test_a_claim_whose_look_finds_something_is_given_back_as_done() -> None:
    script = Script(YOURS)
    done = taken(script, lambda: "it")
    assert (done.result, done.claim) == ("it", None)
    assert script.released == [ClaimRelease(ClaimRef(KEY, "a" * 32, 7), done=True)]


def test_a_claim_whose_look_fails_is_given_back() -> None:
    script = Script(YOURS)

    def look() -> None:
        raise Corrupt("damaged")

    with pytest.raises(Corrupt):
        taken(script, look)
    assert [request.done for request in script.released] == [False]


def test_what_was_published_may_be_seen_a_little_later_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([None, None, "it"])
    assert taken(Script(PUBLISHED), lambda: next(seen)).result == "it"
    monkeypatch.setattr(acquire, "RESOLVED_SECONDS", 0.2)
    script = Script(PUBLISHED, HELD, YOURS)
    done = taken(script)
    assert done.result is None and done.claim.commit_ref is not None, "of no use here, and so it is claimed"
    assert script.seen == [0, PUBLISHED.fence, PUBLISHED.fence]
    done.claim.release()


def test_a_rank_that_does_not_lead_holds_nothing() -> None:
    script = Script(YOURS)
    done = taken(script, leads=False)
    assert (done.result, done.claim) == (None, None)
    assert taken(script, lambda: "it", leads=False).result == "it"
    assert script.released == []


def test_a_claim_is_renewed_until_it_is_given_back() -> None:
    script = Script(YOURS, renewals=(YOURS, Unavailable("down"), YOURS))
    claim = taken(script).claim
    until(lambda: len(script.renewed) >= 4)
    assert set(script.renewed) == {claim.ref} and claim.commit_ref == claim.ref and not claim.lost
    claim.release()
    claim.release()
    assert [request.claim for request in script.released] == [claim.ref]
    assert claim.commit_ref is None, "a commit goes by the head alone then"
    before = len(script.renewed)
    time.sleep(1.5)
    assert len(script.renewed) <= before + 1


def test_a_claim_that_is_lost_is_shown_all_the_same_and_not_given_back() -> None:
    script = Script(YOURS, renewals=(ClaimLost("was taken over"),))
    claim = taken(script).claim
    until(lambda: claim.lost)
    assert claim.commit_ref == claim.ref, "the registry says why it refuses"
    claim.release()
    assert script.released == [] and len(script.renewed) == 1


def test_a_claim_under_which_nothing_comes_is_given_back_after_a_while() -> None:
    script = Script(YOURS)
    claim = taken(script, hold_seconds=1.0).claim
    until(lambda: bool(script.released))
    assert claim.commit_ref is None


def test_a_forked_child_neither_shows_nor_gives_back() -> None:
    script = Script(YOURS)
    claim = taken(script).claim
    child = os.fork()
    if child == 0:
        claim.release()
        os._exit(0 if claim.commit_ref is None and not script.released else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert claim.commit_ref is not None
    claim.release()


def test_who_asks_is_named_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
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
from cachesvc_client.wire.claims import ClaimAnswer
from cachesvc_client.wire.digest import Digest

class Printer:
    def release_claim(self, request, deadline):
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


def test_a_process_that_ends_gives_back_the_claims_that_it_still_holds_and_its_child_none() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS_WITH_CLAIMS], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.splitlines() == ["b True", "a False"], ended.stderr
