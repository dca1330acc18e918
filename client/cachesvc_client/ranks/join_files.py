"""Hands the captured files of all ranks of a job to rank 0, and joins them to the files of one revision.

The files that ranks leave for each other are described in `ranks.job_folder`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ..bundle.pack import SourceFile
from ..bundle.seal import PublicKey
from ..node.ledger import KnownFile, MadeFile, Origin, Source
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError, Unavailable, Untrusted, from_wire, to_wire
from ..wire.names import Lane
from .job_folder import lives, process_id, put_file, read_json

_POLL_SECONDS = 0.02
"""Seconds between two looks at a file that is waited for."""


class JoinRule(Protocol):
    """Declares what joining needs of the rule of a file, see `kinds.rules.FileRule`."""

    @property
    def merge(self) -> Callable[[bytes, bytes], bytes] | None:
        """Return the function that merges two files of one path."""

    @property
    def alike(self) -> Callable[[bytes], bytes] | None:
        """Return the function that returns what two files have in common if either serves for both."""


RuleOf = Callable[[str, str], "JoinRule | None"]
"""Returns the rule for a kind and a path, such as `kinds.rule_of`."""


class HandIn:
    """Brings what the ranks of one node captured to rank 0, and rank 0's answer back to them."""

    def __init__(self, folder: Path) -> None:
        (folder / "files").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._me = process_id(os.getpid())
        self._ranks: list[str] = []
        """Ids of the processes that handed files in."""

    def give(self, rank: int, files: Sequence[KnownFile], facts: Mapping[str, Any]) -> None:
        """Hands in the files of a rank, each with its origin; ``facts`` is JSON that goes with them."""
        entries = []
        for file, origin in files:
            data = file.content()
            name = Digest.of(data).hex
            if not self._holds(name):
                put_file(self._folder, f"files/{name}", data)
            sources = [[str(source.signer), source.lane] for source in origin.sources]
            entries.append([file.kind, file.path, name, file.mode, origin.made, sources])
        contribution = {"process": self._me, "files": entries, "facts": dict(facts)}
        put_file(self._folder, f"rank-{rank}.json", json.dumps(contribution).encode())

    def _holds(self, name: str) -> bool:
        """Return whether the content of a digest is there, from another rank."""
        with contextlib.suppress(OSError):
            return Digest.of((self._folder / "files" / name).read_bytes()).hex == name
        return False

    def collect(
        self, ranks: int, seconds: float
    ) -> tuple[dict[int, list[KnownFile]], dict[int, dict[str, Any]]]:
        """Waits for files and facts of ranks 0 to ``ranks`` - 1, each of a process that lives and waits for
        the answer.

        The contents are read here, and are those that the ranks named. Raises ``Unavailable`` that names the
        ranks which handed nothing in within ``seconds``, ``Untrusted`` for a content that has been replaced.
        """
        contributions = self._await("rank", ranks, seconds)
        self._ranks = [contribution["process"] for contribution in contributions.values()]
        contents: dict[str, bytes] = {}
        return (
            {
                rank: [self._known_file(contents, *item) for item in entry["files"]]
                for rank, entry in contributions.items()
            },
            {rank: entry["facts"] for rank, entry in contributions.items()},
        )

    def exchange(self, rank: int, ranks: int, made: Sequence[MadeFile], seconds: float) -> set[MadeFile]:
        """Tells the other ranks what this one made; returns what all made. To be called before `give`.

        Ranks share a folder, so what one compiled the others find. Raises as `collect` does.
        """
        message = {"process": self._me, "made": made}
        put_file(self._folder, f"made-{rank}.json", json.dumps(message).encode())
        told = self._await("made", ranks, seconds).values()
        return {(kind, path, Digest(digest)) for one in told for kind, path, digest in one["made"]}

    def _await(self, what: str, ranks: int, seconds: float) -> dict[int, dict[str, Any]]:
        """Waits for what each rank leaves, each of a process that lives."""
        end = time.monotonic() + seconds
        contributions: dict[int, dict[str, Any]] = {}
        while len(contributions) < ranks:
            for rank in set(range(ranks)) - contributions.keys():
                contribution = read_json(self._folder / f"{what}-{rank}.json")
                if contribution is not None and lives(contribution["process"]):
                    contributions[rank] = contribution
            if len(contributions) < ranks:
                if time.monotonic() > end:
                    silent = ", ".join(str(rank) for rank in sorted(set(range(ranks)) - contributions.keys()))
                    raise Unavailable(
                        f"publish: rank {silent} of {ranks} handed nothing in within {seconds:g} s",
                        "call publish on every rank, after the same step",
                    )
                time.sleep(_POLL_SECONDS)
        return contributions

    def _known_file(
        self,
        contents: dict[str, bytes],
        kind: str,
        path: str,
        name: str,
        mode: int,
        made: bool,
        sources: Sequence[tuple[str, str | None]],
    ) -> KnownFile:
        """``contents``: those that were read, by digest: equal ones of ranks are held once."""
        if name not in contents:
            data = (self._folder / "files" / name).read_bytes()
            if Digest.of(data).hex != name:
                raise Untrusted(f"publish: {kind}/{path} is not what its rank handed in", "publish again")
            contents[name] = data
        of = frozenset(Source(PublicKey(signer), Lane(lane) if lane else None) for signer, lane in sources)
        return KnownFile(SourceFile(kind, path, contents[name], mode), Origin(of, made=made))

    def reply(self, answer: Mapping[str, Any] | CacheSvcError) -> None:
        """Gives rank 0's answer to the others, and removes what they handed in."""
        message = to_wire(answer) if isinstance(answer, CacheSvcError) else {"answer": dict(answer)}
        put_file(
            self._folder, "answer.json", json.dumps({**message, "by": self._me, "to": self._ranks}).encode()
        )
        for path in [*(self._folder / "files").iterdir(), *self._folder.glob("rank-*.json")]:
            with contextlib.suppress(OSError):
                path.unlink()

    def await_reply(self, seconds: float) -> dict[str, Any]:
        """Waits at most ``seconds`` for rank 0's answer. Raises rank 0's error, or ``Unavailable`` if rank 0
        says nothing or ends."""
        end = time.monotonic() + seconds
        first: str | None = None
        while time.monotonic() < end:
            message = read_json(self._folder / "answer.json")
            if message is not None and "error" in message and lives(message["by"]):
                raise from_wire(500, message)
            if message is not None and "answer" in message and self._me in message["to"]:
                answer: dict[str, Any] = message["answer"]
                return answer
            contribution = read_json(self._folder / "rank-0.json")
            first = contribution["process"] if contribution is not None else first
            if first is not None and not lives(first):
                break
            time.sleep(_POLL_SECONDS)
        raise Unavailable("publish: rank 0 ended or said nothing", "its log says why")


def join_captures(captured: Mapping[int, Sequence[SourceFile]], rule_of: RuleOf) -> list[SourceFile]:
    """Joins the captures of all ranks to the files of one revision: each path once, with the ranks that
    produced or used it; no ranks are named where all did.

    Files that are merged at install are merged here. Of other files the lowest rank's stays, as in a folder
    that the ranks share: compilers name such files by what decides them. The same holds for two files under
    one key that differ in nothing that matters.
    """
    by_path: dict[tuple[str, str], SourceFile] = {}
    for rank in sorted(captured):
        for file in captured[rank]:
            place = (file.kind, file.path)
            before = by_path.get(place)
            if before is None:
                by_path[place] = replace(file, ranks=(rank,))
                continue
            rule = rule_of(file.kind, file.path)
            join = rule.merge if rule is not None else None
            data = join(before.content(), file.content()) if join is not None else before.data
            by_path[place] = replace(before, data=data, ranks=(*before.ranks, rank))
    everyone = tuple(sorted(captured))
    files = _merge_alike(list(by_path.values()), rule_of)
    return [replace(file, ranks=()) if file.ranks == everyone else file for file in files]


def _merge_alike(files: list[SourceFile], rule_of: RuleOf) -> list[SourceFile]:
    """Keeps the first of the files that do the same in one folder, for the ranks of all of them."""
    by_content: dict[tuple[str, ...], SourceFile] = {}
    for file in files:
        rule = rule_of(file.kind, file.path)
        same: tuple[str, ...] = (file.kind, file.path)
        if rule is not None and rule.alike is not None:
            with contextlib.suppress(Exception):  # of ours a ValueError; a kind may be somebody else's
                common = Digest.of(rule.alike(file.content()))
                same = (file.kind, file.path.rpartition("/")[0], common)
        before = by_content.setdefault(same, file)
        if before is not file:
            by_content[same] = replace(before, ranks=tuple(sorted({*before.ranks, *file.ranks})))
    return list(by_content.values())
