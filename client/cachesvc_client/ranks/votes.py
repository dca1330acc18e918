"""What the ranks of one job leave for each other on their node: votes, and captured files.

    <folder>/state.json      votes and outcome of one round; replaced whole, under the lock
    <folder>/lock            held (flock) while the state is changed
    <folder>/files/<hex>     contents that were handed in, by their digest: what ranks share lies here once
    <folder>/rank-<n>.json   what rank n handed in
    <folder>/answer.json     what the ranks were told in return

Nothing here needs a collective of torch's, a server, or a rank that lives: whoever waits, waits for files.
A run that reuses the key of an earlier one (the same port) is told apart by the processes that voted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bundle.pack import SourceFile
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError, Unavailable, from_wire, to_wire

_STATE = "state.json"
_POLL = 0.02


@dataclass(frozen=True, slots=True)
class Outcome:
    """Final, and the same for all ranks of a node. ``why``: what kept them from it."""

    agreed: bool
    why: str = ""


class Vote:
    """One agreement between the ``members`` ranks on this node: all or nothing.

    Guarantees: once any rank knows an outcome, every rank that asks knows the same one; *agreed* only if
    every member voted for the same. No method waits for another rank. Raises ``OSError``.
    """

    def __init__(self, folder: Path, member: int, members: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._member = str(member)
        self._members = members
        self._me = process_id(os.getpid())

    def vote(self, what: Sequence[str], problem: str = "") -> Outcome | None:
        """This rank could install ``what``; or could not, with the ``problem`` in words, which decides.

        Answers the outcome if there is one now: the last vote makes it.
        """
        with self._locked() as state:
            self._follow_ancestor(state)
            self._forget_earlier_run(state)
            if state["outcome"] is None and not self._taken(state):
                state["votes"][self._member] = {"process": self._me, "what": list(what), "problem": problem}
                state["outcome"] = self._counted(state["votes"])
                self._write(state)
        return self.outcome()

    def outcome(self) -> Outcome | None:
        """What was decided on this rank's vote, if it is; no lock, one small file."""
        state = self._read()
        made, mine = state["outcome"], self._voted(state)
        if made is not None:
            return Outcome(made["agreed"] and mine, made["why"])
        return None if mine else Outcome(False, "another process is this rank")

    def give_up(self) -> Outcome:
        """This rank cannot wait any longer: what is not decided yet is decided against."""
        with self._locked() as state:
            if state["outcome"] is None and self._voted(state):
                silent = [str(n) for n in range(self._members) if str(n) not in state["votes"]]
                why = f"rank {', '.join(silent)} of this node was not ready in time"
                state["outcome"] = {"agreed": False, "why": why}
                self._write(state)
        outcome = self.outcome()
        assert outcome is not None
        return outcome

    def _voted(self, state: Mapping[str, Any]) -> bool:
        vote = state["votes"].get(self._member)
        return vote is not None and vote["process"] == self._me

    def _counted(self, votes: Mapping[str, Any]) -> dict[str, Any] | None:
        for member, vote in sorted(votes.items()):
            if vote["problem"]:
                return {"agreed": False, "why": f"rank {member} of this node: {vote['problem']}"}
        if len(votes) < self._members:
            return None
        if len({tuple(vote["what"]) for vote in votes.values()}) > 1:
            return {"agreed": False, "why": "the ranks of this node found different revisions"}
        return {"agreed": True, "why": ""}

    def _follow_ancestor(self, state: Mapping[str, Any]) -> None:
        """A rank's own children have its variables. They do not vote, but go by its vote."""
        vote = state["votes"].get(self._member)
        if vote is not None and vote["process"] in _ancestors():
            self._me = vote["process"]

    def _taken(self, state: Mapping[str, Any]) -> bool:
        """Another process that lives is this rank."""
        return self._member in state["votes"] and not self._voted(state)

    def _forget_earlier_run(self, state: dict[str, Any]) -> None:
        """An earlier run voted if a process that has ended did in this rank's place, or if no voter lives."""
        votes = state["votes"]
        dead = [member for member, vote in votes.items() if not lives(vote["process"])]
        if self._member in dead or len(dead) == len(votes):
            votes.clear()
            state["outcome"] = None
        elif state["outcome"] is None:
            for member in dead:
                del votes[member]

    def _read(self) -> dict[str, Any]:
        try:
            state = json.loads((self._folder / _STATE).read_bytes())
            if isinstance(state["votes"], dict):
                return {"votes": state["votes"], "outcome": state["outcome"]}
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return {"votes": {}, "outcome": None}

    def _write(self, state: dict[str, Any]) -> None:
        _put(self._folder, _STATE, json.dumps(state).encode())

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        """The state, while no other process changes it. The lock ends with its process, however it ends."""
        handle = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield self._read()
        finally:
            os.close(handle)


class HandIn:
    """How the ranks of one node give what they captured to rank 0, and learn what came of it."""

    def __init__(self, folder: Path) -> None:
        (folder / "files").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._me = process_id(os.getpid())
        self._taken: list[str] = []

    def give(self, rank: int, files: Sequence[SourceFile], facts: Mapping[str, Any]) -> None:
        """Hands in; ``facts`` is JSON that goes with the files."""
        listed = []
        for file in files:
            data = file.data if isinstance(file.data, bytes) else file.data.read_bytes()
            name = Digest.of(data).hex
            if not (self._folder / "files" / name).exists():
                _put(self._folder, f"files/{name}", data)
            listed.append([file.kind, file.path, name, file.mode])
        answer = {"process": self._me, "files": listed, "facts": dict(facts)}
        _put(self._folder, f"rank-{rank}.json", json.dumps(answer).encode())

    def collect(
        self, ranks: int, seconds: float
    ) -> tuple[dict[int, list[SourceFile]], dict[int, dict[str, Any]]]:
        """Files and facts of ranks 0 to ``ranks`` - 1, each of a process that lives and waits for the answer.

        Raises ``Unavailable`` that names the ranks which handed nothing in within ``seconds``.
        """
        end = time.monotonic() + seconds
        given: dict[int, dict[str, Any]] = {}
        while len(given) < ranks:
            for rank in set(range(ranks)) - given.keys():
                found = _json(self._folder / f"rank-{rank}.json")
                if found is not None and lives(found["process"]):
                    given[rank] = found
            if len(given) < ranks:
                if time.monotonic() > end:
                    silent = ", ".join(str(rank) for rank in sorted(set(range(ranks)) - given.keys()))
                    raise Unavailable(
                        f"publish: rank {silent} of {ranks} handed nothing in within {seconds:g} s",
                        "call publish on every rank, after the same step",
                    )
                time.sleep(_POLL)
        self._taken = [found["process"] for found in given.values()]
        return (
            {rank: [self._source(*item) for item in found["files"]] for rank, found in given.items()},
            {rank: found["facts"] for rank, found in given.items()},
        )

    def _source(self, kind: str, path: str, name: str, mode: int) -> SourceFile:
        return SourceFile(kind, path, self._folder / "files" / name, mode)

    def reply(self, answer: Mapping[str, Any] | CacheSvcError) -> None:
        """Rank 0 tells the others, and clears away what they handed in."""
        said = to_wire(answer) if isinstance(answer, CacheSvcError) else {"answer": dict(answer)}
        _put(self._folder, "answer.json", json.dumps({**said, "by": self._me, "to": self._taken}).encode())
        for path in [*(self._folder / "files").iterdir(), *self._folder.glob("rank-*.json")]:
            with contextlib.suppress(OSError):
                path.unlink()

    def await_reply(self, seconds: float) -> dict[str, Any]:
        """What rank 0 was answered, at the latest after ``seconds``. Raises rank 0's error, or
        ``Unavailable`` if it says nothing or ends."""
        end = time.monotonic() + seconds
        first: str | None = None
        while time.monotonic() < end:
            said = _json(self._folder / "answer.json")
            if said is not None and "error" in said and lives(said["by"]):
                raise from_wire(500, said)
            if said is not None and "answer" in said and self._me in said["to"]:
                answer: dict[str, Any] = said["answer"]
                return answer
            found = _json(self._folder / "rank-0.json")
            first = found["process"] if found is not None else first
            if first is not None and not lives(first):
                break
            time.sleep(_POLL)
        raise Unavailable("publish: rank 0 ended or said nothing", "its log says why")


def process_id(pid: int) -> str:
    """``pid:start``, which no later process has; ``proc(5)``, stat, field 22."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return f"{pid}:"
    return f"{pid}:{fields[19].decode()}" if fields[0] not in (b"Z", b"X") else f"{pid}:"


def _ancestors() -> set[str]:
    """The processes that this one comes from, up to eight."""
    found: set[str] = set()
    pid = os.getppid()
    while pid > 1 and len(found) < 8:
        found.add(process_id(pid))
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


def lives(process: str) -> bool:
    """Whether the process of this id runs; one that ended and was not waited for does not."""
    pid = process.partition(":")[0]
    return pid.isdigit() and not process.endswith(":") and process_id(int(pid)) == process


def wait_for(round_: Vote, time_is_up: Callable[[], bool], pause: Callable[[], None]) -> Outcome:
    """Until the outcome is known; once ``time_is_up``, this rank gives up, which makes one."""
    while True:
        outcome = round_.outcome()
        if outcome is not None:
            return outcome
        if time_is_up():
            return round_.give_up()
        pause()


def _put(folder: Path, name: str, data: bytes) -> None:
    temporary = folder / f".{secrets.token_hex(8)}"
    temporary.write_bytes(data)
    os.replace(temporary, folder / name)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
