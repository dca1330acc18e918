"""Pin the root of a registry's trust metadata at a login."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..atomic import replacing
from ..bundle.seal import key_text
from ..wire.digest import Digest
from ..wire.errors import Corrupt, NotFound, StorageFull, Untrusted
from .metadata import Root, key_texts
from .registry_metadata import read_pinned, verify_first

if TYPE_CHECKING:
    from ..http.registry import Remote


@dataclass(frozen=True, slots=True)
class Pin:
    """Describes a root that a login has pinned. ``text``: a line for the user."""

    path: Path
    text: str


def pin_root(remote: Remote, root: Path | None, folder: Path) -> Pin | None:
    """Store a registry's root in ``folder``; return ``None`` if the registry has no trust metadata.

    ``root``: file of a root that the user got another way. Without it the registry's own root is trusted on
    first use. Raise ``Untrusted`` if the registry's metadata do not follow from the root.
    """
    verified = verify_first(read_pinned(root) if root is not None else None, remote)
    if verified is None:
        return None
    data, metadata = verified
    path = folder / f"{Digest.of(remote.url.encode()).hex}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path, 0o600) as file:
            file.write(data)
    except OSError as error:
        raise StorageFull(f"{path}: cannot be written: {error.strerror}") from None
    return Pin(path, _text(remote.url, metadata.root, root))


def check_pin(remote: Remote, path: Path) -> None:
    """Raise ``Untrusted`` if a registry's metadata do not follow from the root that is pinned for it."""
    try:
        verify_first(read_pinned(path), remote)
    except (Untrusted, Corrupt, NotFound) as error:
        raise Untrusted(
            f"{remote.url} is not the registry whose root is pinned in {path}: {error.message}",
            f"if you set up another one there: cachesvc login {remote.url} --new-root",
        ) from None


def _text(url: str, root: Root, file: Path | None) -> str:
    role = root.roles["root"]
    keys = ", ".join(key_text(key) for key in key_texts(root.keys, role))
    source = f"the root in {file}" if file is not None else "its root, which was trusted on first use"
    compare = "" if file is not None else "; compare the key with what `cachesvc serve` prints"
    return f"pinned for {url}: {source}; root keys ({role.threshold} must sign): {keys}{compare}"
