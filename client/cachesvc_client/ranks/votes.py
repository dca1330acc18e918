"""Counts the votes of the ranks of one job on one node: all of them install, or none does.

The files of a vote are described in `ranks.job_folder`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .job_folder import ancestors, lives, process_id, put_file

_STATE = "state.json"
"""Name of the file that holds votes and outcome."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Says whether the ranks of a node agreed. It is final, and the same for all of them. ``why``: what kept
    them from it."""

    agreed: bool
    why: str = ""


class Vote:
    """Counts one vote of the ``members`` ranks on this node: all or nothing.

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
        """Votes that this rank could install ``what``; or that it could not, with the ``problem`` in words,
        which decides the vote.

        Returns the outcome if there is one now: the last vote decides it.
        """
        with self._locked() as state:
            self._follow_ancestor(state)
            self._forget_earlier_run(state)
            if state["outcome"] is None and not self._another_process_voted(state):
                state["votes"][self._member] = {"process": self._me, "what": list(what), "problem": problem}
                state["outcome"] = self._decide(state["votes"])
                self._write(state)
        return self.outcome()

    def outcome(self) -> Outcome | None:
        """Returns the outcome of this rank's vote, if it is decided. Takes no lock and reads one small
        file."""
        state = self._read()
        decision, voted = state["outcome"], self._voted(state)
        if decision is not None:
            return Outcome(decision["agreed"] and voted, decision["why"])
        return None if voted else Outcome(False, "another process is this rank")

    def give_up(self) -> Outcome:
        """Decides an open vote against the install, since this rank cannot wait any longer."""
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

    def _decide(self, votes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the outcome that these votes decide, if they decide one."""
        for member, vote in sorted(votes.items()):
            if vote["problem"]:
                return {"agreed": False, "why": f"rank {member} of this node: {vote['problem']}"}
        if len(votes) < self._members:
            return None
        if len({tuple(vote["what"]) for vote in votes.values()}) > 1:
            return {"agreed": False, "why": "the ranks of this node found different revisions"}
        return {"agreed": True, "why": ""}

    def _follow_ancestor(self, state: Mapping[str, Any]) -> None:
        """Takes over the vote of an ancestor. The children of a rank have its variables; they do not vote,
        but go by its vote."""
        vote = state["votes"].get(self._member)
        if vote is not None and vote["process"] in ancestors():
            self._me = vote["process"]

    def _another_process_voted(self, state: Mapping[str, Any]) -> bool:
        """Tells whether another process has voted as this rank."""
        return self._member in state["votes"] and not self._voted(state)

    def _forget_earlier_run(self, state: dict[str, Any]) -> None:
        """Removes the votes of an earlier run: one of them is a dead process's in this rank's place, or no
        voter lives."""
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
        put_file(self._folder, _STATE, json.dumps(state).encode())

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        """Yields the state while no other process changes it. The lock ends with its process, however it
        ends."""
        handle = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield self._read()
        finally:
            os.close(handle)


def wait_for(vote: Vote, *, time_is_up: Callable[[], bool], pause: Callable[[], None]) -> Outcome:
    """Waits until the outcome is known. Once ``time_is_up``, this rank stops, which makes an outcome."""
    while True:
        outcome = vote.outcome()
        if outcome is not None:
            return outcome
        if time_is_up():
            return vote.give_up()
        pause()
