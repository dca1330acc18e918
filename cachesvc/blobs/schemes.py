"""Open a store by its URL. Each backend is an entry point of the group ``cachesvc.blobs``, whose name is the
scheme, and whose object takes the URL and the backend's options and returns the store."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import cast
from urllib.parse import urlsplit

from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, printable

from .store import BlobStore

GROUP = "cachesvc.blobs"


def open_by_url(url: str, **options: object) -> BlobStore:
    """Return the store of a URL.

    Raises ``InvalidRequest`` with one line for a scheme that no installed distribution has, or that two have,
    and what the backend raises.
    """
    scheme = urlsplit(url).scheme
    points = entry_points(group=GROUP)
    found = [point for point in points if point.name == scheme]
    if not found:
        raise InvalidRequest(
            f"no store for {printable(scheme)[:40]}:// is installed",
            f"there are {', '.join(sorted({point.name for point in points})) or 'none'}",
        )
    if len(found) > 1:
        owners = " and ".join(point.dist.name if point.dist else point.value for point in found)
        raise InvalidRequest(f"{owners} have a store for {scheme}://", "uninstall one of them")
    try:
        return cast(BlobStore, found[0].load()(url, **options))
    except CacheSvcError:
        raise
    except Exception as error:
        what = printable(f"{type(error).__name__}: {error}")[:200]
        raise InvalidRequest(f"the store for {scheme}:// cannot be opened: {what}") from error
