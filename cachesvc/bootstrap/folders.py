"""Say where the parts of an embedded registry are in its data folder, and lock it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cachesvc.registry.upkeep.backup import KEYS
from cachesvc.settings import Settings
from cachesvc_client.wire.errors import InvalidRequest, NotFound, Unavailable


def data_folder(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"data folder {path}: {error.strerror or error}", "name another with --data"
        ) from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise Unavailable(f"data folder {path}: not writable", "name another with --data")
    return path


@contextmanager
def locked(data: Path) -> Iterator[None]:
    try:
        lock = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(
            f"data folder {data}: {error.strerror or error}", "name another with --data"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequest(
                f"data folder {data}: another server works in it", "stop it, or name another with --data"
            ) from None
        yield
    finally:
        os.close(lock)


def existing_parent(path: Path) -> Path:
    """Returns the folder, or the nearest above it that exists."""
    return next(place for place in (path, *path.parents) if place.is_dir())


def index_file(settings: Settings) -> Path:
    return settings.data / "index.sqlite3"


def blob_folder(settings: Settings) -> Path:
    return settings.data / "blobs"


def key_files(settings: Settings) -> dict[str, Path]:
    """Returns the private keys that the data folder holds, by name."""
    paths = {name: settings.data / f"{name}.key" for name in KEYS}
    return {name: path for name, path in paths.items() if path.is_file()}


def key_path(settings: Settings, name: str) -> Path | None:
    """Returns where a private key of a backup goes; ``None`` where the settings have it, or an operator."""
    return None if settings.database else settings.data / f"{name}.key"


def signing_key_path(settings: Settings) -> Path:
    """Returns the path at which the first start puts the signing key."""
    return settings.data / "signing.key"


def require_registry(settings: Settings, *, store: bool = False) -> None:
    """Raise ``NotFound`` if the data folder should have a registry and holds none: to open one would make it.

    ``store``: only the store is needed, which may be in a folder that has no index yet.
    """
    if store:
        there = settings.packs_elsewhere or settings.data.is_dir()
    else:
        there = bool(settings.database) or index_file(settings).is_file()
    if not there:
        raise NotFound(
            f"{settings.data}: no registry is there",
            "name its folder with --data or its settings with --config; cachesvc serve makes a new one",
        )


def has_store(settings: Settings) -> bool:
    """Returns whether a store is there already: to open one in the data folder would make it."""
    return bool(settings.packs_elsewhere) or blob_folder(settings).is_dir()
