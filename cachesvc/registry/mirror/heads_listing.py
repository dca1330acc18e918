"""List heads for the mirrors of this registry."""

from __future__ import annotations

from cachesvc.domain.access import Action, Token, demand
from cachesvc.domain.offers import withheld
from cachesvc.index.mirrors import ListedHead
from cachesvc.schema.entries import MAX_WHY
from cachesvc.schema.mirrors import MAX_HEADS, HeadRow, HeadsPage
from cachesvc_client.wire.digest import Digest

from ..context import Registry


def list_heads(registry: Registry, by: Token, after: Digest | None, mark: str | None) -> HeadsPage:
    """Returns a page of the heads that the token may read, behind an entry. Withheld heads are among them,
    each with its reason; heads whose signed statements have expired are not.

    ``mark``: that of an earlier listing. If it still holds, the answer has no heads. A change while pages are
    read changes the mark, so that the next listing has it.
    """
    demand(by, Action.read, by.namespace, by.lane)
    lanes = None if by.lane is None else ("", str(by.lane))
    with registry.index.read() as unit:
        present = unit.mirrors.mark()
        if mark == present:
            return HeadsPage(present, unchanged=True)
        rows = unit.mirrors.listing(by.namespace, lanes, after or "", MAX_HEADS + 1, registry.clock())
    page = rows[:MAX_HEADS]
    following = page[-1].entry if len(rows) > MAX_HEADS else None
    return HeadsPage(present, tuple(map(_row, page)), next=following)


def _row(head: ListedHead) -> HeadRow:
    difference = withheld(head)
    why = None
    if difference is not None:
        by_operator = head.revoked_why is None and head.quarantined is not None
        why = (head.quarantine_why or "") if by_operator else difference.mine
    return HeadRow(
        Digest(head.entry),
        Digest(head.revision),
        head.sequence,
        head.published,
        None if why is None else why[:MAX_WHY],
    )
