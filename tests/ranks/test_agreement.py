"""Test that all ranks of a node agree or none does: real processes vote through files, are silent, die, and
start again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.node.ledger import KnownFile, Origin, Source
from cachesvc_client.ranks.job_folder import lives, process_id
from cachesvc_client.ranks.join_files import HandIn
from cachesvc_client.ranks.votes import Outcome, Vote, wait_for
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Forbidden, Unavailable, Untrusted
from cachesvc_client.wire.names import Lane

VOTER = """
import json, sys, time
from pathlib import Path
from cachesvc_client.ranks.votes import Vote, wait_for
folder, member, members, what, problem, patience = json.loads(sys.argv[1])
if what is not None:
    vote = Vote(Path(folder), member, members)
    vote.vote(what, problem)
    end = time.monotonic() + patience
    outcome = wait_for(
        vote, time_is_up=lambda: time.monotonic() > end, pause=lambda: time.sleep(0.005)
    )
    print(json.dumps([outcome.agreed, outcome.why]), flush=True)
sys.stdin.read()  # a rank goes on to live
"""


def voter(folder: Path, member: int, members: int, what, problem: str = "", patience: float = 60):
    order = json.dumps([str(folder), member, members, what, problem, patience])
    return subprocess.Popen(
        [sys.executable, "-c", VOTER, order], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def outcomes(processes: list[subprocess.Popen]) -> list[tuple[bool, str]]:
    """Return the outcomes of all voters while all of them live, then end them."""
    answers = [tuple(json.loads(process.stdout.readline())) for process in processes]
    for process in processes:
        process.communicate("")
    return answers


def test_four_ranks_that_can_all_install_agree(tmp_path):
    assert outcomes([voter(tmp_path, n, 4, ["a", "b"]) for n in range(4)]) == [(True, "")] * 4


@pytest.mark.parametrize(
    ("votes", "why"),
    [
        ([(["a"], ""), ([], "no registry"), (["a"], "")], "rank 1 of this node: no registry"),
        ([(["a"], ""), (["b"], ""), (["a"], "")], "the ranks of this node found different revisions"),
        ([(["a"], ""), ([], ""), (["a"], "")], "the ranks of this node found different revisions"),
    ],
)
def test_one_rank_that_cannot_install_decides_for_all(tmp_path, votes, why):
    ranks = [voter(tmp_path, n, 3, what, problem) for n, (what, problem) in enumerate(votes)]
    assert outcomes(ranks) == [(False, why)] * 3


def test_a_rank_that_never_attaches_blocks_the_others_until_their_deadline_at_most(tmp_path):
    """The first rank whose time is up decides; the others follow though they have time left."""
    ranks = [voter(tmp_path, 0, 3, ["a"], patience=0.3), voter(tmp_path, 2, 3, ["a"], patience=3600)]
    assert outcomes(ranks) == [(False, "rank 1 of this node was not ready in time")] * 2


def test_a_late_rank_follows_the_decision(tmp_path):
    early, later = Vote(tmp_path, 0, 2), voter(tmp_path, 1, 2, None)
    early.vote(["a"])
    assert early.outcome() is None
    decided = early.give_up()
    assert decided == Outcome(False, "rank 1 of this node was not ready in time")
    later.communicate("")
    assert outcomes([voter(tmp_path, 1, 2, ["a"])]) == [(False, decided.why)]
    assert early.outcome() == early.give_up() == decided


def test_a_rank_that_died_has_not_agreed(tmp_path):
    dying = voter(tmp_path, 1, 2, ["a"])
    while not (tmp_path / "state.json").exists():
        assert dying.poll() is None
        time.sleep(0.01)
    dying.kill()
    dying.communicate()
    assert outcomes([voter(tmp_path, 0, 2, ["a"], patience=0.2)]) == [
        (False, "rank 1 of this node was not ready in time")
    ]


def test_a_killed_rank_keeps_no_lock(tmp_path):
    """The rank is killed while it holds the lock."""
    program = (
        "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1] + '/lock', os.O_RDWR | os.O_CREAT), 2); "
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"
    vote = Vote(tmp_path, 0, 1)
    answered: list[Outcome | None] = []
    thread = threading.Thread(target=lambda: answered.append(vote.vote(["a"])))
    thread.start()
    thread.join(0.2)
    assert not answered
    holder.kill()
    holder.communicate()
    thread.join(20)
    assert answered == [Outcome(True)]


@pytest.mark.parametrize("before", ["agreed", "refused", "open"])
def test_votes_of_an_earlier_run_under_the_same_port_do_not_count(tmp_path, before):
    count = 2 if before == "agreed" else 1
    problem = "gone" if before == "refused" else ""
    ranks = [voter(tmp_path, n, 2, ["old"], problem) for n in range(count)]
    if before == "open":
        while not (tmp_path / "state.json").exists():
            time.sleep(0.01)
        ranks[0].kill()
        ranks[0].communicate()
    else:
        outcomes(ranks)
    first = Vote(tmp_path, 0, 2)
    assert first.vote(["new"]) is None
    assert outcomes([voter(tmp_path, 1, 2, ["new"])]) == [(True, "")]
    assert first.outcome() == Outcome(True)


def test_votes_of_half_an_earlier_run_do_not_count(tmp_path):
    """Rank 1 of the earlier run still lives when the next run begins."""
    lingering = voter(tmp_path, 1, 2, ["old"])
    dead = voter(tmp_path, 0, 2, ["old"])
    assert dead.stdout.readline() and lingering.stdout.readline()
    dead.communicate("")
    first = Vote(tmp_path, 0, 2)
    assert first.vote(["new"]) is None
    lingering.communicate("")
    assert outcomes([voter(tmp_path, 1, 2, ["new"])]) == [(True, "")]


def test_a_ranks_child_uses_its_vote_and_a_strange_process_does_not_agree(tmp_path):
    """Children inherit RANK; their votes must not look like another run."""
    vote, other = Vote(tmp_path, 0, 2), voter(tmp_path, 1, 2, ["a"])
    vote.vote(["a"])
    assert outcomes([voter(tmp_path, 0, 2, ["a"])]) == [(True, "")]  # A child of this process.
    stranger = Vote(tmp_path, 1, 2)
    stranger._me = process_id(os.getpid())
    assert other.stdout.readline()
    assert stranger.vote(["a"]) == Outcome(False, "")
    other.communicate("")
    assert vote.outcome() == Outcome(True)


def test_the_last_vote_and_the_deadline_may_coincide(tmp_path):
    """Whichever comes first, both ranks reach the same outcome."""
    for number in range(60):
        rounds = [Vote(tmp_path / str(number), member, 2) for member in range(2)]
        rounds[0].vote(["a"])
        start = threading.Barrier(2)
        results: list[Outcome] = []

        def late(rounds=rounds, start=start, results=results) -> None:
            start.wait()
            rounds[1].vote(["a"])
            results.append(wait_for(rounds[1], time_is_up=lambda: True, pause=lambda: None))

        thread = threading.Thread(target=late)
        thread.start()
        start.wait()
        mine = rounds[0].give_up()
        thread.join()
        assert [mine.agreed] == [outcome.agreed for outcome in results]


def test_a_damaged_state_is_no_agreement(tmp_path):
    (tmp_path / "state.json").write_text("{")
    vote = Vote(tmp_path, 0, 2)
    assert vote.vote(["a"]) is None
    assert not vote.give_up().agreed


def test_a_process_is_distinguished_from_later_ones_with_its_number():
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    named = process_id(child.pid)
    assert lives(named) and lives(process_id(os.getpid()))
    assert not lives(f"{child.pid}:1")
    child.send_signal(signal.SIGKILL)
    while process_id(child.pid) == named:  # Wait until the child is a zombie.
        time.sleep(0.01)
    assert not lives(named)
    child.communicate()
    assert not lives(named)


# Files that ranks hand in.

GIVER = """
import json, sys
from pathlib import Path
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.node.ledger import KnownFile, Origin
from cachesvc_client.ranks.join_files import HandIn
from cachesvc_client.wire.errors import CacheSvcError
folder, rank = sys.argv[1], int(sys.argv[2])
box = HandIn(Path(folder))
files = [SourceFile("inductor", "shared", b"same"), SourceFile("inductor", f"own{rank}", b"%d" % rank)]
box.give(rank, [KnownFile(file, Origin(made=True)) for file in files], {"rank": rank})
print("given", flush=True)
try:
    print(json.dumps(box.await_reply(60)), flush=True)
except CacheSvcError as error:
    print(json.dumps([error.code, error.message]), flush=True)
"""


def giver(folder: Path, rank: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", GIVER, str(folder), str(rank)], stdout=subprocess.PIPE, text=True
    )


def test_files_that_ranks_share_are_stored_once_and_all_ranks_get_the_reply(tmp_path):
    box = HandIn(tmp_path)
    source = Source(SigningKey.generate().public, Lane("unproven"))
    shared = KnownFile(SourceFile("inductor", "shared", b"same"), Origin(frozenset({source})))
    box.give(0, [shared], {"rank": 0})
    others = [giver(tmp_path, rank) for rank in (1, 2)]
    files, facts = box.collect(3, seconds=60)
    assert [facts[rank]["rank"] for rank in range(3)] == [0, 1, 2]
    assert files[0] == [shared] and all(one.origin == Origin(made=True) for one in files[1])
    assert {rank: [one.file.path for one in own_files] for rank, own_files in files.items()} == {
        0: ["shared"],
        1: ["shared", "own1"],
        2: ["shared", "own2"],
    }
    assert len(list((tmp_path / "files").iterdir())) == 3  # The files shared, own1 and own2.
    box.reply({"revision": "sha256:x"})
    for other in others:
        assert other.communicate()[0].splitlines() == ["given", '{"revision": "sha256:x"}']
    assert [path.name for path in tmp_path.rglob("*")] in (["answer.json", "files"], ["files", "answer.json"])


def test_contents_that_somebody_replaced_among_the_ranks_files_are_not_taken(tmp_path):
    box, other = HandIn(tmp_path), giver(tmp_path, 1)
    box.give(0, [], {})
    assert other.stdout.readline() == "given\n"
    for file in (tmp_path / "files").iterdir():
        file.write_bytes(b"hostile")
    with pytest.raises(Untrusted, match="is not what its rank handed in"):
        box.collect(2, seconds=60)
    other.kill()
    other.communicate()


def test_contents_that_lie_there_before_are_not_taken_for_a_ranks(tmp_path):
    box, file = HandIn(tmp_path), SourceFile("inductor", "shared", b"same")
    (tmp_path / "files" / Digest.of(b"same").hex).write_bytes(b"hostile")
    box.give(0, [KnownFile(file, Origin(made=True))], {})
    assert [one.file.data for one in box.collect(1, seconds=60)[0][0]] == [b"same"]


def test_an_error_of_rank_0_reaches_every_rank(tmp_path):
    box, other = HandIn(tmp_path), giver(tmp_path, 1)
    box.give(0, [], {})
    box.collect(2, seconds=60)
    box.reply(Forbidden("not with this token"))
    assert other.communicate()[0].splitlines()[-1] == '["forbidden", "not with this token"]'


def test_a_rank_that_hands_nothing_in_is_named(tmp_path):
    box = HandIn(tmp_path)
    box.give(0, [], {})
    dead_rank = giver(tmp_path, 1)
    assert dead_rank.stdout.readline() == "given\n"
    dead_rank.kill()  # The files of a dead rank do not count: an earlier run's would look the same.
    dead_rank.communicate()
    with pytest.raises(Unavailable, match=r"rank 1, 2 of 3 handed nothing in.*every rank"):
        box.collect(3, seconds=0.1)


def test_nobody_waits_for_a_rank_0_that_ended(tmp_path):
    first = giver(tmp_path, 0)
    assert first.stdout.readline() == "given\n"
    other = giver(tmp_path, 1)
    assert other.stdout.readline() == "given\n"
    first.kill()
    first.communicate()
    assert '"unavailable"' in other.communicate(timeout=30)[0]
