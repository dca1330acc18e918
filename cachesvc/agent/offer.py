"""Hold what a registry offers under one name, and make of it the list that services read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cachesvc_client.trust.accept import Accepted
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.manifest.records import Frame, PackRecord
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.requests.node_list import ListedRevision, NodeList, sorted_rows
from cachesvc_client.wire.requests.protocol import ResolvedRevision


@dataclass(frozen=True, slots=True)
class Checked:
    """Holds what is kept of a revision that was checked: a manifest with its files is a thousand times as
    large."""

    row: ListedRevision
    fingerprint: dict[str, FactorValue]
    pack: PackRecord
    frames: tuple[Frame, ...]


@dataclass(slots=True)
class Offer:
    """Holds what a registry offers under one name. ``asked``: when the registry was asked, in seconds of UTC.
    ``sources``: by pack, the answer that says where it is, without its envelope."""

    name: Name
    asked: float
    revisions: list[Checked] = field(default_factory=list)
    sources: dict[Digest, ResolvedRevision] = field(default_factory=dict)

    def node_list(self, url: str) -> NodeList:
        """Return the list of what is offered, for the services of the node."""
        places: dict[bytes, int] = {}
        fingerprints: list[dict[str, FactorValue]] = []
        rows: dict[Digest, ListedRevision] = {}
        for one in self.revisions:
            text = canonical(one.fingerprint)
            if text not in places:
                places[text] = len(fingerprints)
                fingerprints.append(one.fingerprint)
            rows[one.row.revision] = replace(one.row, fingerprint=places[text])
        newest_first = tuple(sorted_rows(rows.values()))
        return NodeList(url, str(self.name), self.name.tag, newest_first, tuple(fingerprints))


def listed_row(verified: Accepted, published: int) -> ListedRevision:
    """Return the row of a list; its fingerprint gets its place when the list is written. ``published``: when
    the registry accepted the revision."""
    manifest = verified.manifest
    return ListedRevision(
        entry=manifest.entry,
        revision=verified.revision,
        target=manifest.statement.target,
        pack=manifest.pack.digest,
        pack_size=manifest.pack.size,
        sequence=manifest.statement.sequence,
        published=published,
        fingerprint=0,
        scopes=tuple(manifest.scopes),
        model=manifest.workload.model,
        keys=manifest.graph_keys,
    )
