"""Writes the URL of a registry in one spelling, and says what is wrong with another text."""

from __future__ import annotations

import re

_URL = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>(?:/[A-Za-z0-9._~%-]+)*)/*"
)
"""Matches the URL of a registry."""


def registry_url(text: str) -> str:
    """Returns ``http(s)://host[:port][/prefix]`` in one spelling: lower case, without a slash at the end.

    Raises ``ValueError`` with what is allowed.
    """
    match = _URL.fullmatch(text)
    if match is None or int(match["port"] or 0) > 65535:
        raise ValueError(_wrong_url(text))
    for end in ("/v1", "/ui"):
        if match["path"].endswith(end):
            raise ValueError(f"leave {end} out: {'clients add it' if end == '/v1' else 'it is the web page'}")
    scheme, host, port = match["scheme"], match["host"].lower(), match["port"]
    standard = {"http": "80", "https": "443"}[scheme]
    return f"{scheme}://{host}{f':{port}' if port and port != standard else ''}{match['path']}"


def _wrong_url(text: str) -> str:
    """Return what is wrong with a text that is no URL of a registry, and what is allowed."""
    if re.search(r":[0-9]{5,}(?:/|$)", text) and text.startswith(("http://", "https://")):
        return "a port is at most 65535"
    if "://" not in text and _URL.fullmatch(f"https://{text}") and re.match(r"localhost|[^/]*[.:]", text):
        host = text.partition(":")[0].partition("/")[0]
        scheme = "http" if host in ("localhost", "127.0.0.1") else "https"
        return f"it begins with http:// or https://: did you mean {scheme}://{text}?"
    return "allowed: http(s)://host[:port][/prefix], without user, query or fragment"
