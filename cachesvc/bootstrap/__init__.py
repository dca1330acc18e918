"""Put the registry together from concrete backends, which no other module names."""

from __future__ import annotations

from cachesvc.index.engine import knows_schema

from .emptiness import open_empty, require_empty
from .folders import has_store, key_files, key_path, require_registry, signing_key_path
from .opening import check_backends, migrate_index, open_registry, open_running, open_store

__all__ = [
    "check_backends",
    "has_store",
    "key_files",
    "key_path",
    "knows_schema",
    "migrate_index",
    "open_empty",
    "open_registry",
    "open_running",
    "open_store",
    "require_empty",
    "require_registry",
    "signing_key_path",
]
