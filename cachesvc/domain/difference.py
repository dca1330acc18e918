"""Compute what a search finds entries by, and what differs between two revisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cachesvc.schema.entries import Change, RevisionDifference
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import FileRecord, Manifest, Workload

NAMED_FILES = 500
"""Files that a difference names; it counts all of them."""
MAX_FACETS = 64
"""Shapes, and dtypes, by which a search finds an entry, at most."""
_MAX_VALUE_CHARACTERS = 200


def facets(workload: Workload) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns (dtypes, shapes) of the workload and of its inputs' tensors, such as ``bfloat16`` and
    ``8x128``; a tensor without dimensions is ``scalar``."""
    dtypes, shapes = {workload.dtype} - {""}, set()
    for tensor in _tensors(workload.inputs):
        dtypes.add(str(tensor["dtype"]))
        shape = tensor.get("shape")
        if isinstance(shape, list):
            shapes.add("x".join(str(size) for size in shape) or "scalar")
    return tuple(filter(_plain, sorted(dtypes)))[:MAX_FACETS], tuple(filter(_plain, sorted(shapes)))[
        :MAX_FACETS
    ]


def difference(first: Manifest, second: Manifest) -> RevisionDifference:
    """Returns the facts that differ, and the files, by kind and path, whose content differs."""
    facts = tuple(_changes(_facts(first), _facts(second)))
    before, after = _files(first), _files(second)
    changes = list(
        _changes(
            {name: file.digest for name, file in before.items()}, {n: f.digest for n, f in after.items()}
        )
    )
    return RevisionDifference(
        first=Digest.of(first.encode()),
        second=Digest.of(second.encode()),
        facts=facts,
        files=tuple(changes[:NAMED_FILES]),
        files_added=sum(not change.before for change in changes),
        files_removed=sum(not change.after for change in changes),
        files_changed=sum(bool(change.before and change.after) for change in changes),
        files_same=len(before.keys() & after.keys()) - sum(bool(c.before and c.after) for c in changes),
    )


def _tensors(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if isinstance(value.get("dtype"), str):
            yield value
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _plain(text: str) -> bool:
    return 0 < len(text) <= 100 and text.isascii() and text.isprintable() and " " not in text


def _facts(manifest: Manifest) -> dict[str, str]:
    fields = codec.plain(manifest)
    parts = {key: fields[key] for key in ("statement", "fingerprint", "workload", "measured", "provenance")}
    parts["pack"] = fields["pack"]
    parts["scopes"] = fields["scopes"]
    return dict(_flat("", parts))


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), item)
    else:
        yield path, value if isinstance(value, str) else codec.canonical(value).decode()


def _files(manifest: Manifest) -> dict[str, FileRecord]:
    return {f"{file.kind}/{file.path}": file for file in manifest.files}


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for what in sorted(before.keys() | after.keys()):
        old, new = before.get(what, ""), after.get(what, "")
        if old != new:
            yield Change(what, old[:_MAX_VALUE_CHARACTERS], new[:_MAX_VALUE_CHARACTERS])
