"""Owns this node's own signing key.

The key lies outside of the node store, so that a store that is copied or cached cannot bring its own key.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ..wire.errors import CacheSvcError, InvalidRequest

if TYPE_CHECKING:
    from ..bundle.seal import SigningKey

_log = logging.getLogger("cachesvc")


def node_key(*, make: bool) -> SigningKey | None:
    """Loads this node's own key, which only this user may read. ``make``: generate a key if there is none.

    Returns ``None`` if there is no key, or no folder for it.
    """
    from ..bundle.seal import SigningKey
    from ..config.login import login_path

    login = login_path()
    if login is None:
        return None
    path = login.with_name("node.key")
    try:
        if make and not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(InvalidRequest):  # another process was faster
                SigningKey.generate().save(path)
        status = path.lstat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise InvalidRequest(f"{path}: others may read or replace it", f"chmod 600 {path}")
        return SigningKey.load(path)
    except (OSError, CacheSvcError) as error:
        _log.debug("no key of this node: %s", error)
        return None
