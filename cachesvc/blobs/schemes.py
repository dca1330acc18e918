"""Open a store by its URL.

A backend is an entry point: its name is the scheme, and its object takes the URL and the backend's options,
and returns the store. Ours are a list, so that a checkout runs without an installation; those of other
distributions are in the group ``cachesvc.blobs``.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import cast
from urllib.parse import urlsplit

from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, printable

from .store import BlobStore

GROUP = "cachesvc.blobs"
_OURS = [
    EntryPoint("file", "cachesvc.blobs.local:open_url", GROUP),
    EntryPoint("oci", "cachesvc.blobs.oci:open_url", GROUP),
    EntryPoint("s3", "cachesvc.blobs.s3:open_url", GROUP),
]


def open_by_url(url: str, **options: object) -> BlobStore:
    """Return the store of a URL.

    Raises ``InvalidRequest`` with one line for a scheme that no installed distribution has, or that two have,
    and what the backend raises.
    """
    scheme = urlsplit(url).scheme
    points = [*_OURS, *entry_points(group=GROUP)]
    found = [point for point in points if point.name == scheme]
    if not found:
        raise InvalidRequest(
            f"no store for {printable(scheme)[:40]}:// is installed",
            f"there are {', '.join(sorted({point.name for point in points}))}",
        )
    if len(found) > 1:
        owners = " and ".join(point.dist.name if point.dist else "cachesvc" for point in found)
        raise InvalidRequest(f"{owners} have a store for {scheme}://", "uninstall one of them")
    try:
        return cast(BlobStore, found[0].load()(url, **options))
    except CacheSvcError:
        raise
    except Exception as error:
        what = printable(f"{type(error).__name__}: {error}")[:200]
        raise InvalidRequest(f"the store for {scheme}:// cannot be opened: {what}") from error
