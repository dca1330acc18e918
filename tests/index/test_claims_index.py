"""Claims on both databases: one holder at a time, and a fence that only grows. Time passes by making every
row older, since the clock is the database's own."""

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
from cachesvc_client.wire.claims import ClaimRef, ClaimSubject
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import ClaimLost
from cachesvc_client.wire.names import Lane, Namespace, ShortName

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
    index: Index, holder: str, of: ClaimSubject = SUBJECT, token: str = "t-1", seen: int = 0
) -> ClaimRef | None:
    with index.write() as unit:
        taken = unit.claims.take(of, holder, f"host {holder[0]}", token, SECONDS, seen)
    return ClaimRef(taken[0].key, taken[0].holder, taken[0].fence) if taken else None


def current(index: Index, shown: ClaimRef) -> bool:
    with index.read() as unit:
        found = unit.claims.get(shown.key)
    try:
        demand_current(found[0] if found else None, shown)
    except ClaimLost:
        return False
    return True


def test_it_has_one_holder_until_it_is_over(index: Index) -> None:
    a, b, c = HOLDERS
    first = take(index, a)
    assert first is not None and take(index, b) is None
    assert take(index, a) == first, "the same again is the same holder, and keeps his fence"
    pass_time(index, 60)
    with index.write() as unit:
        renewed, now = unit.claims.renew(first, SECONDS)
        assert (renewed.expires, now - renewed.taken >= 60) == (now + SECONDS, True)
    pass_time(index, 60)
    assert take(index, b) is None, "it was renewed"
    pass_time(index, 60)
    assert current(index, first), "over, and nobody took it: nobody else compiles"
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


def test_who_waits_learns_that_it_is_published(index: Index) -> None:
    a, b, _ = HOLDERS
    mine, other = take(index, a), take(index, b, subject("bart"))
    with index.write() as unit:
        assert unit.claims.fulfil([SUBJECT.key, Digest.of(b"nobody's")]) == [SUBJECT.key]
        found = unit.claims.states([SUBJECT.key, subject("bart").key, Digest.of(b"none")])
        assert {key: standing(*seen) for key, seen in found.items()} == {
            SUBJECT.key: "published",
            subject("bart").key: "held",
        }
        assert unit.claims.renew(mine, SECONDS)[0].done, "its holder may go on, and publish over it"
        assert unit.claims.release(other, done=True)
        assert standing(*unit.claims.get(subject("bart").key)) == "published"
    assert take(index, b) is None, "it is held"
    assert take(index, a, subject("bart")) is None, "who did not see what was published is to look first"
    anew = take(index, a, subject("bart"), seen=other.fence)
    assert anew.fence > other.fence, "and who did, may have it"
    with index.write() as unit:
        assert not unit.claims.get(subject("bart").key)[0].done, "who takes it, takes it anew"
        unit.claims.release(anew, done=True)
    pass_time(index, RECENT_SECONDS + 1)
    assert take(index, b, subject("bart")) is not None, "nobody has looked before that any more"


def test_the_number_of_a_tokens_claims(index: Index) -> None:
    refs = [take(index, HOLDERS[0], subject(f"m{n}")) for n in range(3)]
    take(index, HOLDERS[1], subject("m9"), token="t-2")
    with index.write() as unit:
        assert (unit.claims.live("t-1"), unit.claims.live("t-2"), unit.claims.live("t-3")) == (3, 1, 0)
        unit.claims.release(refs[0], done=False)
        assert unit.claims.live("t-1") == 2
    pass_time(index, SECONDS + 1)
    with index.read() as unit:
        assert unit.claims.live("t-1") == 0


def test_what_ended_long_ago_is_forgotten_and_its_fence_is_not_used_again(index: Index) -> None:
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
    assert not current(index, first), "another holder's"


def test_of_many_at_once_one_has_it(index: Index) -> None:
    """Eight threads, ten rounds: each time one takes it, the others learn who; the fences rise."""
    fences = []
    for round_ in range(10):
        start = threading.Barrier(8)

        def work(number: int, start: threading.Barrier = start, round_: int = round_) -> ClaimRef | None:
            start.wait(10)
            return take(index, f"{round_:016x}{number:016x}")

        with ThreadPoolExecutor(8) as pool:
            taken = [ref for ref in pool.map(work, range(8)) if ref is not None]
        assert len(taken) == 1
        fences.append(taken[0].fence)
        if round_ % 2:
            pass_time(index, SECONDS + 1)
        else:
            with index.write() as unit:
                assert unit.claims.release(taken[0], done=False)
    assert fences == sorted(set(fences))


def test_a_commit_that_holds_the_row_is_not_taken_over_in_between(index: Index) -> None:
    """The fence is checked and then something is written: who takes over waits for that to end."""
    shown = take(index, HOLDERS[0])
    pass_time(index, SECONDS + 1)
    checked, order = threading.Event(), []

    def commit() -> None:
        with index.write() as unit:
            demand_current(unit.claims.lock(shown.key), shown)
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
    """What the rules say: who holds it, until when, and the last fence of all."""

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
    """At any time at most one of those who ever held it is current, and only by the rules; each new holder's
    fence is above all before."""
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
                    done = unit.claims.renew(refs[holder], SECONDS) is not None
                else:
                    done = unit.claims.release(refs[holder], done=False)
            assert done == (holder == model.holder)
            if done:
                model.expires = model.now + (SECONDS if what == "renew" else 0)
                model.holder = holder if what == "renew" else ""
        assert [name for name, ref in refs.items() if current(index, ref)] == (
            [model.holder] if model.holder else []
        )


def test_the_message_says_what_happened() -> None:
    shown = ClaimRef(Digest.of(b"k"), HOLDERS[0], 3)
    held = Claim(shown.key, Namespace("team"), ShortName("m"), None, HOLDERS[1], 4, 0, 9, who="ci run 7")
    with pytest.raises(ClaimLost, match="taken over by ci run 7, after its holder was silent"):
        demand_current(held, shown)
    with pytest.raises(ClaimLost, match="given back"):
        demand_current(None, shown)
