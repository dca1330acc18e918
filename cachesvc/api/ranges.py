"""Read the header for one byte range of an object, by RFC 9110 §14 and §13.1.5."""

from __future__ import annotations

import re

from cachesvc_client.wire.errors import RangeInvalid

_ONE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")


def requested_range(header: str | None, if_range: str | None, etag: str, size: int) -> tuple[int, int] | None:
    """Returns (start, length) of the range to answer, in bytes, or ``None`` for the whole object.

    A header that is not one single byte range is ignored, as the RFC allows; so is one whose ``If-Range``
    names another object. Raises ``RangeInvalid`` for a range outside of the object.
    """
    match = _ONE.fullmatch(header.strip()) if header else None
    if match is None or match.groups() == ("", "") or (if_range is not None and if_range.strip() != etag):
        return None
    first, last = match.groups()
    if not first:
        start, end = max(size - int(last), 0), size
        if int(last) == 0:
            raise _outside(header, size)
    else:
        start = int(first)
        end = min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    if start >= size:
        raise _outside(header, size)
    return start, end - start


def _outside(header: str | None, size: int) -> RangeInvalid:
    return RangeInvalid(f"range {header!r}: the object has {size} bytes")
