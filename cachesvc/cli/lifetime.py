"""Parse ``--expires``: for how long what a command signs is valid."""

from __future__ import annotations

from cachesvc_client.wire.durations import parse_duration
from cachesvc_client.wire.errors import InvalidRequest


def parse_lifetime(text: str | None) -> float | None:
    """Return the seconds that ``--expires`` names; ``None`` without it. Raises ``InvalidRequest``."""
    if text is None:
        return None
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise InvalidRequest(f"--expires: {error}") from None
    if not seconds:
        raise InvalidRequest("--expires: nothing would be valid", "leave it out: it never expires")
    return seconds
