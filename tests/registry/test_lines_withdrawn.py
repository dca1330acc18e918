"""Withdraw what revisions were made with, over both columns of backends: each has SQL of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_inside import ROOT, Clock, Column, Inside, inside
from registry_making import make

from cachesvc.registry.upkeep import quarantine
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import HeadConflict, NotFound, Untrusted
from cachesvc_client.wire.manifest.ancestors import Ancestor
from cachesvc_client.wire.names import Namespace


@pytest.fixture
def reg(tmp_path: Path, column: Column) -> Iterator[Inside]:
    with inside(tmp_path, SigningKey.generate(), Clock(), column=column) as registry:
        yield registry


def test_a_refused_line_leaves_nothing_and_a_released_one_is_taken(reg: Inside) -> None:
    gone = Digest.of(b"deleted long ago")
    line = (Ancestor(gone, Namespace("team"), reg.key.public),)
    with pytest.raises(NotFound):
        quarantine.withdraw(reg.registry, ROOT, gone, "nobody knows it")
    first = reg.publish(make(reg.key, ancestors=line)).revision
    for why in ("first", "second"):
        row = quarantine.withdraw(reg.registry, ROOT, gone, why)
        assert [one.revision for one in row.descendants or ()] == [first]
    late = make(reg.key, ancestors=line, content=b"late")
    with pytest.raises(HeadConflict):
        reg.publish(late)
    with pytest.raises(Untrusted, match="first"):
        reg.publish(late, first)
    quarantine.release(reg.registry, ROOT, gone)
    assert reg.publish(late, first).revision == late.revision, "the refused commit moved no head"
