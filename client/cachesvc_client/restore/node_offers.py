"""Answers what a registry would, from the lists of this node's agent: without a byte from the registry.

The lists are hints. Each envelope that they name passes the same checks as one from the network, and where no
list has what is asked for, the registry is asked: a question costs less than a compile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..node.shared_store import SharedStore
from ..wire.compare import Compatible, Mismatch, compare, nearness
from ..wire.names import Name, Tag
from ..wire.partitions import Offered, of_older_models
from ..wire.requests.node_list import ListedRevision, NodeList, list_key, sorted_rows
from ..wire.requests.protocol import (
    MAX_RESOLVED,
    RESOLVED_OF_KEY,
    Rejected,
    ResolveAnswer,
    ResolvedRevision,
    ResolveRequest,
    pack_path,
)

_MAX_REJECTED = 64
"""Number of rejected entries that an answer names."""


@dataclass(frozen=True, slots=True)
class NodeOffers:
    """Answers from the lists of one registry. ``url``: the registry. ``max_age``: seconds for which a list is
    used without a question to the registry."""

    store: SharedStore
    url: str
    max_age: float

    def answer(self, request: ResolveRequest, max_age: float) -> tuple[ResolveAnswer, float] | None:
        """Returns the answer and how many seconds old it is.

        ``None`` if a list is missing or older than ``max_age``, or names an envelope that is not here. The
        lists hold the trunk: of a lane nothing is known here.
        """
        if request.lane is not None:
            return None
        oldest = 0.0
        for tag in request.tags:
            found = self._list(request, tag)
            if found is None or found[1] > max_age:
                return None
            listed, age = found
            oldest = max(oldest, age)
            if listed.revisions:
                answer = self._answer(request, listed)
                return None if answer is None else (answer, oldest)
        return ResolveAnswer(()), oldest

    def _list(self, request: ResolveRequest, tag: Tag) -> tuple[NodeList, float] | None:
        name = Name(request.namespace, request.name, tag)
        found = self.store.list_of(list_key(self.url, name))
        if found is None:
            return None
        try:
            listed = NodeList.parse(found[0])
        except ValueError:
            return None
        here = listed.url == self.url and listed.name == str(name) and listed.tag == tag
        return (listed, found[1]) if here else None

    def _answer(self, request: ResolveRequest, listed: NodeList) -> ResolveAnswer | None:
        verdicts: dict[tuple[int, tuple[str, ...]], Compatible | Mismatch] = {}
        fitting: list[ListedRevision] = []
        refused: list[tuple[ListedRevision, Mismatch]] = []
        for row in _asked_for(request, sorted_rows(listed.revisions)):
            key = (row.fingerprint, row.scopes)
            if key not in verdicts:
                theirs = listed.fingerprints[row.fingerprint]
                verdicts[key] = compare(request.fingerprint, theirs, row.scopes)
            verdict = verdicts[key]
            if isinstance(verdict, Mismatch):
                refused.append((row, verdict))
            else:
                fitting.append(row)
        chosen, more, older = _chosen(request, fitting)
        revisions = [self._resolved(row) for row in chosen[:MAX_RESOLVED]]
        if any(revision is None for revision in revisions):
            return None
        tag = listed.tag
        refused.sort(key=lambda pair: nearness(pair[1].differences))
        rejected = [
            Rejected(row.entry, row.target, tag, mismatch.differences)
            for row, mismatch in refused[:_MAX_REJECTED]
        ]
        offered = tuple(revision for revision in revisions if revision is not None)
        return ResolveAnswer(offered, tuple(rejected), tag, more=more or None, older=older or None)

    def _resolved(self, row: ListedRevision) -> ResolvedRevision | None:
        envelope = self.store.envelope(row.revision)
        if envelope is None:
            return None
        text = envelope.decode(errors="replace")
        return ResolvedRevision(
            row.entry, row.revision, text, row.pack, row.pack_size, pack_path(row.revision)
        )


def _asked_for(request: ResolveRequest, rows: Sequence[ListedRevision]) -> Iterable[ListedRevision]:
    """Returns the rows of the entries or keys that a request names; all rows if it names none."""
    if request.entries:
        return [row for row in rows if row.entry in request.entries]
    if request.keys:
        chosen: dict[ListedRevision, None] = {}
        for key in request.keys:
            holding = [row for row in rows if key in row.keys]
            chosen.update(dict.fromkeys(holding[:RESOLVED_OF_KEY]))
        return chosen
    return rows


def _chosen(request: ResolveRequest, fitting: list[ListedRevision]) -> tuple[list[ListedRevision], int, int]:
    """Returns the fitting revisions to answer, those of the request's model first, how many are omitted, as
    `ResolveRequest.most` says, and how many of older models are."""
    of_model = [row for row in fitting if row.model is not None and row.model == request.model]
    bounded = request.most is not None and not request.entries and not request.keys
    if bounded and len(fitting) > (request.most or 0) and all(row.keys for row in fitting):
        chosen = of_model if len(of_model) <= (request.most or 0) else []
        return chosen, len(fitting) - len(chosen), 0
    older = of_older_models(Offered(row.entry, row.target, row.model, row.at) for row in fitting)
    others = [row for row in fitting if row not in of_model]
    kept = [row for row in others if not (bounded and row.entry in older and row.keys)]
    return [*of_model, *kept], 0, len(others) - len(kept)
