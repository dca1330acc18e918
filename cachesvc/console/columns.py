"""The columns of the tables of entries, revisions and signers."""

from __future__ import annotations

from typing import Any

from cachesvc_client.console.listing import Columns, digest_text, moment, name_text
from cachesvc_client.console.tables import bytes_text
from cachesvc_client.wire.durations import duration_text

NAME_COLUMNS: Columns = {
    "name": lambda row: f"{row.namespace}/{row.name}",
    "entries": lambda row: row.entries,
    "bytes": lambda row: bytes_text(row.bytes),
    "tags": lambda row: ", ".join(row.tags[:8]) + (" …" if len(row.tags) > 8 else ""),
}
ENTRY_COLUMNS: Columns = {
    "entry": lambda row: digest_text(row.entry),
    "name": name_text,
    "target": lambda row: row.target,
    "torch": lambda row: row.fingerprint.get("torch", ""),
    "device": lambda row: row.fingerprint.get("gpu", row.fingerprint.get("cpu_isa", "")),
    "size": lambda row: bytes_text(row.pack_size),
    "published": lambda row: moment(row.published),
    "used": lambda row: moment(row.last_used),
    "head": lambda row: digest_text(row.revision),
    "": lambda row: _marks(row),
}
MISS_COLUMNS: Columns = {
    "name": lambda row: name_text(row.wanted),
    "reason": lambda row: row.reason,
    "do": lambda row: row.fix,
    "starts": lambda row: row.wanted.starts,
    "compiled": lambda row: duration_text(row.wanted.spent),
    "seen": lambda row: moment(row.wanted.last_seen),
    "target": lambda row: row.wanted.target or "",
    "torch": lambda row: row.wanted.facts.get("torch", ""),
    "device": lambda row: row.wanted.facts.get("gpu", row.wanted.facts.get("cpu_isa", "")),
    "why": lambda row: row.wanted.why,
}
SUMMARY_COLUMNS: Columns = {
    "entry": lambda row: digest_text(row.entry),
    "tag": lambda row: row.tag + (f" [{row.lane}]" if row.lane else ""),
    "target": lambda row: row.target,
    "torch": lambda row: row.fingerprint.get("torch", ""),
    "device": lambda row: row.fingerprint.get("gpu", row.fingerprint.get("cpu_isa", "")),
    "size": lambda row: bytes_text(row.pack_size),
    "published": lambda row: moment(row.published),
}
REVISION_COLUMNS: Columns = {
    "revision": lambda row: digest_text(row.revision),
    "published": lambda row: moment(row.published),
    "by": lambda row: row.published_by,
    "size": lambda row: bytes_text(row.pack_size),
    "files": lambda row: row.files,
    "used": lambda row: moment(row.last_used),
    "expires": lambda row: moment(row.expires),
    "": lambda row: _words("head" if row.head else "", _marks(row, row.withdrawn_ancestor)),
}


SIGNER_COLUMNS: Columns = {
    "namespace": lambda row: row.namespace,
    "key": lambda row: row.key,
    "label": lambda row: row.label,
}


def _marks(row: Any, withdrawn_ancestor: str | None = None) -> str:
    withheld = "quarantined" if row.quarantined else "withheld" if withdrawn_ancestor else ""
    return _words("pinned" if row.pinned else "", withheld)


def _words(*words: str) -> str:
    return " ".join(filter(None, words))
