"""Test claims on both databases: one holder at a time, and a fence that only grows.

The clock is the database's own, so a test lets time pass by making every row older."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachesvc.domain.claims import KEPT_SECONDS, RECENT_SECONDS, Claim, demand_current, standing
from cachesvc.index.unit import Index
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import ClaimLost
from cachesvc_client.wire.names import Lane, Namespace, ShortName
from cachesvc_client.wire.requests.claims import ClaimRef, ClaimSubject

SECONDS = 100
HOLDERS = ("a" * 32, "b" * 32, "c" * 32)
SUBJECT = ClaimSubject(Namespace("team"), ShortName("bert"), Digest.of(b"here"), lane=Lane("pr-1"))


def subject(name: str) -> ClaimSubject:
    return ClaimSubject(Namespace("team"), ShortName(name), Digest.of(b"here"))


def pass_time(index: Index, seconds: int) -> None:
    with index.write() as unit:
        unit.claims._session.connection().execute(
            sa.text("UPDATE claims SET expires = expires - :s, taken = taken - :s").bindparams(s=seconds)
        )


def take(
    index: Index, holder: str, of: ClaimSubject = SUBJECT, token: str = "t-1", last_fence: int = 0
) -> ClaimRef | None:
    with index.write() as unit:
        claim = unit.claims.take(of, holder, f"host {holder[0]}", token, SECONDS, last_fence)
    return ClaimRef(claim[0].key, claim[0].holder, claim[0].fence) if claim else None


def current(index: Index, ref: ClaimRef) -> bool:
    with index.read() as unit:
        claim = unit.claims.get(ref.key)
    try:
        demand_current(claim[0] if claim else None, ref)
    except ClaimLost:
        return False
    return True


def test_a_claim_has_one_holder_until_it_ends(index: Index) -> None:
    a, b, c = HOLDERS
    first = take(index, a)
    assert first is not None and take(index, b) is None
    assert take(index, a) == first, "a second request of the holder keeps its fence"
    pass_time(index, 60)
    with index.write() as unit:
        renewed, now = unit.claims.renew(first, SECONDS)
        assert (renewed.expires, now - renewed.taken >= 60) == (now + SECONDS, True)
    pass_time(index, 60)
    assert take(index, b) is None, "the claim was renewed"
    pass_time(index, 60)
    assert current(index, first), "the claim ended, and nobody took it: nobody else compiles"
    second = take(index, b)
    assert second.fence > first.fence
    assert not current(index, first) and current(index, second)
    with index.write() as unit:
        assert unit.claims.renew(first, SECONDS) is None
        assert not unit.claims.release(first, done=True)
        claim, now = unit.claims.get(SUBJECT.key)
        assert (claim.holder, claim.lane, claim.who, claim.done) == (b, "pr-1", "host b", False)
        assert standing(claim, now) == "held"
        assert unit.claims.release(second, done=False)
        assert standing(*unit.claims.get(SUBJECT.key)) == "free"
    assert take(index, c).fence > second.fence


def test_a_waiting_client_learns_of_the_publication(index: Index) -> None:
    a, b, _ = HOLDERS
    mine, other = take(index, a), take(index, b, subject("bart"))
    with index.write() as unit:
        assert unit.claims.fulfil([SUBJECT.key, Digest.of(b"nobody's")]) == [SUBJECT.key]
        states = unit.claims.states([SUBJECT.key, subject("bart").key, Digest.of(b"none")])
        assert {key: standing(*state) for key, state in states.items()} == {
            SUBJECT.key: "published",
            subject("bart").key: "held",
        }
        assert unit.claims.renew(mine, SECONDS)[0].done, "the holder may go on, and publish over it"
        assert unit.claims.release(other, done=True)
        assert standing(*unit.claims.get(subject("bart").key)) == "published"
    assert take(index, b) is None, "the claim has a holder"
    assert take(index, a, subject("bart")) is None, (
        "a client that did not see the publication must look first"
    )
    anew = take(index, a, subject("bart"), last_fence=other.fence)
    assert anew.fence > other.fence, "a client that saw the publication may have the claim"
    with index.write() as unit:
        assert not unit.claims.get(subject("bart").key)[0].done, "the client takes a new claim"
        unit.claims.release(anew, done=True)
    pass_time(index, RECENT_SECONDS + 1)
    assert take(index, b, subject("bart")) is not None, "nobody has looked since"


def test_the_number_of_a_tokens_claims_is_counted(index: Index) -> None:
    refs = [take(index, HOLDERS[0], subject(f"m{n}")) for n in range(3)]
    take(index, HOLDERS[1], subject("m9"), token="t-2")
    with index.write() as unit:
        assert (unit.claims.live("t-1"), unit.claims.live("t-2"), unit.claims.live("t-3")) == (3, 1, 0)
        unit.claims.release(refs[0], done=False)
        assert unit.claims.live("t-1") == 2
    pass_time(index, SECONDS + 1)
    with index.read() as unit:
        assert unit.claims.live("t-1") == 0


def test_old_claims_are_forgotten_and_their_fence_is_not_used_again(index: Index) -> None:
    first = take(index, HOLDERS[0])
    take(index, HOLDERS[1], subject("young"))
    with index.write() as unit:
        assert unit.claims.forget(KEPT_SECONDS) == 0
    pass_time(index, KEPT_SECONDS)
    with index.write() as unit:
        unit.claims.take(subject("young"), HOLDERS[1], "", "t-1", SECONDS)
        assert unit.claims.forget(KEPT_SECONDS - SECONDS - 5) == 1
        assert unit.claims.get(SUBJECT.key) is None
    assert not current(index, first)
    assert take(index, HOLDERS[1]).fence >= first.fence
    assert not current(index, first), "a claim of another holder"


def test_of_many_clients_at_once_one_gets_the_claim(index: Index) -> None:
    """Eight threads run ten rounds. In each round one takes the claim and the others learn the holder; the
    fences rise."""
    fences = []
    for round_ in range(10):
        start = threading.Barrier(8)

        def work(number: int, start: threading.Barrier = start, round_: int = round_) -> ClaimRef | None:
            start.wait(10)
            return take(index, f"{round_:016x}{number:016x}")

        with ThreadPoolExecutor(8) as pool:
            refs = [ref for ref in pool.map(work, range(8)) if ref is not None]
        assert len(refs) == 1
        fences.append(refs[0].fence)
        if round_ % 2:
            pass_time(index, SECONDS + 1)
        else:
            with index.write() as unit:
                assert unit.claims.release(refs[0], done=False)
    assert fences == sorted(set(fences))


def test_a_commit_that_locks_the_row_delays_a_takeover(index: Index) -> None:
    """The commit checks the fence and then writes; a takeover waits for the end of both."""
    ref = take(index, HOLDERS[0])
    pass_time(index, SECONDS + 1)
    checked, order = threading.Event(), []

    def commit() -> None:
        with index.write() as unit:
            demand_current(unit.claims.lock(ref.key), ref)
            checked.set()
            threading.Event().wait(0.3)
            order.append("committed")

    def take_over() -> None:
        checked.wait(5)
        assert take(index, HOLDERS[1]) is not None
        order.append("taken")

    with ThreadPoolExecutor(2) as pool:
        for job in (pool.submit(commit), pool.submit(take_over)):
            job.result(20)
    assert order == ["committed", "taken"]


@dataclass
class Model:
    """Models the rules: the holder, the end of its claim, and the last fence of all."""

    now: int = 0
    holder: str = ""
    expires: int = 0
    fences: dict[str, int] = field(default_factory=dict)

    def may_take(self, holder: str) -> bool:
        return holder == self.holder or not self.holder or self.expires <= self.now


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "renew", "release", "pass"]), st.integers(0, 2)),
    min_size=1,
    max_size=25,
)


_numbers = itertools.count()


@given(steps=STEPS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_steps(index: Index, steps: list[tuple[str, int]]) -> None:
    """At any time at most one holder is current, and only by the rules; each new holder's fence is above all
    earlier ones."""
    of = subject(f"m{next(_numbers)}")
    model, refs, highest = Model(), {}, -1
    for what, who in steps:
        holder = HOLDERS[who]
        if what == "pass":
            pass_time(index, 60)
            model.now += 60
        elif what == "take":
            ref, may = take(index, holder, of), model.may_take(holder)
            assert (ref is not None) == may
            if ref is not None:
                if holder == model.holder:
                    assert ref == refs[holder]
                else:
                    assert ref.fence > highest
                highest, refs[holder] = ref.fence, ref
                model.holder, model.expires = holder, model.now + SECONDS
        elif holder in refs:
            with index.write() as unit:
                if what == "renew":
                    accepted = unit.claims.renew(refs[holder], SECONDS) is not None
                else:
                    accepted = unit.claims.release(refs[holder], done=False)
            assert accepted == (holder == model.holder)
            if accepted:
                model.expires = model.now + (SECONDS if what == "renew" else 0)
                model.holder = holder if what == "renew" else ""
        assert [name for name, ref in refs.items() if current(index, ref)] == (
            [model.holder] if model.holder else []
        )


def test_the_message_says_what_happened_to_the_claim() -> None:
    ref = ClaimRef(Digest.of(b"k"), HOLDERS[0], 3)
    claim = Claim(ref.key, Namespace("team"), ShortName("m"), None, HOLDERS[1], 4, 0, 9, who="ci run 7")
    with pytest.raises(ClaimLost, match="taken over by ci run 7, after its holder was silent"):
        demand_current(claim, ref)
    with pytest.raises(ClaimLost, match="given back"):
        demand_current(None, ref)
