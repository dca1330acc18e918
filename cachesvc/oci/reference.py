"""Parses references to images: ``host[:port]/repository[:tag][@digest]``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cachesvc_client.http.origin import Origin, split_url
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import InvalidRequest

_EXPECTED = "expected host[:port]/repository[:tag] or host[:port]/repository@sha256:…"
_HOST = r"(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
TAG = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
"""Matches a tag, as the distribution specification defines it."""
_REFERENCE = re.compile(
    rf"(?P<host>{_HOST})/(?P<repository>{_PART}(?:/{_PART})*)(?::(?P<tag>{TAG}))?(?:@(?P<digest>sha256:[0-9a-f]{{64}}))?"
)
_REPOSITORY_CHARACTERS = 255
"""Largest number of characters of a repository's name."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Names an image in a registry. ``tag``: ``latest`` if the text names neither a tag nor a digest; empty
    beside a digest that stands alone."""

    host: str
    repository: str
    tag: str
    digest: Digest | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parses the text. The host must be written: there is no default registry.

        Raises ``InvalidRequest`` that says what is expected.
        """
        match = _REFERENCE.fullmatch(text)
        if not match or len(match["repository"]) > _REPOSITORY_CHARACTERS:
            raise InvalidRequest(f"reference {text[:120]!r}: not a reference to an image", _EXPECTED)
        host = match["host"]
        if not re.search(r"[.:]", host) and host != "localhost":
            raise InvalidRequest(f"reference {text[:120]!r}: {host} is no host of a registry", _EXPECTED)
        digest = Digest(match["digest"]) if match["digest"] else None
        tag = match["tag"] or ("" if digest else "latest")
        return cls(host, match["repository"], tag, digest)

    def origin(self, plain_http: bool = False) -> Origin:
        """Returns where the registry is: by HTTPS, but by HTTP on this machine and with ``plain_http``."""
        origin, _ = split_url(f"https://{self.host}", f"reference {self}")
        if plain_http or origin.loopback:
            origin, _ = split_url(f"http://{self.host}", f"reference {self}")
        return origin

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.host}/{self.repository}{tag}{f'@{self.digest}' if self.digest else ''}"
