"""Get the OpenID Connect token of this CI job from its CI system.

What a CI system passes in variables is taken out of the environment, so that no model code inherits it.
"""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from cachesvc.schema.publishers import MAX_WORKLOAD_TOKEN
from cachesvc_client.http.connection import Pool
from cachesvc_client.http.origin import split_url
from cachesvc_client.http.timed import Clock
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, ProtocolMismatch, Unavailable

SOURCES = "github, gitlab, gitlab:VARIABLE, kubernetes or file:PATH"
GITLAB_VARIABLE = "CACHESVC_ID_TOKEN"
"""Name of the variable below `id_tokens` of a GitLab job, unless the user names another."""
KUBERNETES_FILE = Path("/var/run/secrets/cachesvc/token")
"""Place of the projected token of a Kubernetes service account, unless the user names a file."""
_GITHUB = ("ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN")
_MAX_ANSWER_BYTES = 64 << 10
_SECONDS = 10.0
"""Seconds for one request to the CI system."""
_TRIES = 3


class JobTokenSource(Protocol):
    """Gives tokens of this job."""

    renews: bool
    """Whether the source has another token after the first one."""

    def get(self, audience: str) -> str:
        """Return a token of this job for ``audience``, where the CI system lets the job choose it."""
        ...


def take_source(text: str, environ: MutableMapping[str, str]) -> JobTokenSource:
    """Return the source that the user names, and remove its variables from ``environ``.

    Raises ``InvalidRequest`` that says what the job lacks.
    """
    kind, _, rest = text.partition(":")
    if text == "github":
        url, secret = (environ.pop(name, "") for name in _GITHUB)
        if not url or not secret:
            raise InvalidRequest(
                "--oidc github: this job may not ask for a token",
                "add to the workflow or the job: permissions: {id-token: write}",
            )
        return _GitHub(url, secret)
    if kind == "gitlab":
        name = rest or GITLAB_VARIABLE
        token = environ.pop(name, "")
        if not token:
            raise InvalidRequest(
                f"--oidc gitlab: {name[:60]} is not set",
                f"add to the job: id_tokens: {{{name[:60]}: {{aud: …}}}}",
            )
        return _Variable(token)
    if text == "kubernetes":
        return _File(KUBERNETES_FILE)
    if kind == "file" and rest.startswith("/"):
        return _File(Path(rest))
    raise InvalidRequest(f"--oidc: {text[:80]!r}", f"{SOURCES}; PATH is absolute")


@dataclass(slots=True)
class _GitHub:
    url: str
    secret: str = field(repr=False)
    renews: bool = True

    def get(self, audience: str) -> str:
        for number in range(1, _TRIES + 1):
            try:
                return self._ask(audience)
            except CacheSvcError as error:
                if not error.retry or number == _TRIES:
                    raise Unavailable(
                        f"--oidc github: GitHub gave no token: {error.message}", "run the job again"
                    ) from None
            time.sleep(number)
        raise AssertionError("unreachable")

    def _ask(self, audience: str) -> str:
        origin, path = split_url(self.url, _GITHUB[0])
        if origin.scheme != "https" and not origin.loopback:
            raise InvalidRequest(f"{_GITHUB[0]}: {origin} is plain HTTP", "https://…")
        path += ("&" if "?" in path else "?") + "audience=" + quote(audience, safe="")
        headers = {"Host": origin.netloc, "Authorization": f"Bearer {self.secret}"}
        headers |= {"Accept": "application/json", "Accept-Encoding": "identity"}
        clock = Clock(time.monotonic() + _SECONDS, _SECONDS)
        with Pool(_SECONDS).request(origin, "GET", path, headers, None, clock, reuse=False) as response:
            if response.status != 200:
                raise Unavailable(f"{origin}: status {response.status}")
            body = response.body(_MAX_ANSWER_BYTES)
        try:
            answer = codec.parse_json(body, limit=_MAX_ANSWER_BYTES, what="the answer")
            return _checked(str(answer["value"]), "GitHub's answer")
        except (ValueError, KeyError, TypeError):
            raise ProtocolMismatch(f"{origin}: no token in its answer") from None


@dataclass(slots=True)
class _Variable:
    token: str = field(repr=False)
    renews: bool = False

    def get(self, audience: str) -> str:
        """Return the token; the job's definition says for which audience."""
        del audience
        return _checked(self.token, "--oidc gitlab")


@dataclass(slots=True)
class _File:
    path: Path
    renews: bool = True

    def get(self, audience: str) -> str:
        """Return what the file holds now: who writes it says for which audience, and renews it."""
        del audience
        try:
            with open(self.path, "rb") as file:
                text = file.read(MAX_WORKLOAD_TOKEN + 2)
        except OSError as error:
            raise InvalidRequest(
                f"--oidc: {self.path}: {error.strerror or error}",
                "mount the service account's token there: docs/admin.md, trusted publishers",
            ) from None
        return _checked(text.decode("latin-1"), f"--oidc: {self.path}")


def _checked(text: str, what: str) -> str:
    token = text.strip()
    if not (token.isascii() and token.isprintable() and 0 < len(token) <= MAX_WORKLOAD_TOKEN):
        raise InvalidRequest(f"{what}: not a token", "a JSON Web Token")
    return token
