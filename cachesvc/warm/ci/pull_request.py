"""Keep one comment of a pull request up to date, by GitHub's REST API.

The requests are those of "REST API endpoints for issue comments" in GitHub's documentation.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachesvc_client.http.connection import Pool
from cachesvc_client.http.origin import split_url
from cachesvc_client.http.timed import Clock
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import (
    CacheSvcError,
    Forbidden,
    InvalidRequest,
    ProtocolMismatch,
    Unavailable,
)

MAX_COMMENT_BYTES = 60_000
"""Bytes of a report in a comment; GitHub takes 65,536 characters."""
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}")
_VERSION = "2022-11-28"
_SECONDS = 20.0
"""Seconds for one request."""
_TRIES = 3
_PAGE = 100
_MAX_PAGES = 30
"""Pages of comments that are searched; GitHub's own limit of comments is 2,500."""
_MAX_ANSWER_BYTES = 32 << 20
_MAX_EVENT_BYTES = 32 << 20
_TRUSTED = ("OWNER", "MEMBER", "COLLABORATOR")
"""Associations of people whose comment may be the report's, where the token is a person's."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """Names a pull request, and holds what may comment on it."""

    api: str
    repository: str
    number: int
    token: str = field(repr=False)

    @classmethod
    def of_job(cls, environ: Mapping[str, str], token: str) -> PullRequest | None:
        """Return the pull request that a job of GitHub Actions runs for; ``None`` if it runs for none.

        Raises ``InvalidRequest`` for what is no job of GitHub Actions, or has no token.
        """
        path, repository = environ.get("GITHUB_EVENT_PATH", ""), environ.get("GITHUB_REPOSITORY", "")
        if not path or not _REPOSITORY.fullmatch(repository):
            raise InvalidRequest(
                "no job of GitHub Actions", "GITHUB_EVENT_PATH and GITHUB_REPOSITORY say for what it runs"
            )
        number = _number(Path(path))
        if number is None:
            return None
        if not token:
            raise InvalidRequest("no token to comment with", "set GITHUB_TOKEN: ${{ github.token }}")
        return cls(environ.get("GITHUB_API_URL") or "https://api.github.com", repository, number, token)

    def write_comment(self, key: str, markdown: str) -> str:
        """Put the report into this pull request's comment of ``key``, and return the comment's address.

        The comment is the first one that begins with the key's hidden marker and that a bot or a member of
        the repository wrote: strangers may comment too. If there is none, it is added. Raises ``Forbidden``
        for a token that may not do this, and ``Unavailable``.
        """
        marker = _marker(key)
        body = {"body": f"{marker}\n{markdown}"}
        issue = f"/repos/{self.repository}/issues/{self.number}/comments"
        for comment in self._comments(issue):
            if str(comment.get("body", "")).startswith(marker) and _is_ours(comment):
                path = f"/repos/{self.repository}/issues/comments/{int(comment['id'])}"
                return _address(self._send("PATCH", path, body))
        return _address(self._send("POST", issue, body))

    def _comments(self, path: str) -> Iterator[dict[str, Any]]:
        for page in range(1, _MAX_PAGES + 1):
            rows = self._send("GET", f"{path}?per_page={_PAGE}&page={page}")
            if not isinstance(rows, list):
                raise ProtocolMismatch(f"{self.api}: no list of comments")
            yield from (row for row in rows if isinstance(row, dict))
            if len(rows) < _PAGE:
                return

    def _send(self, method: str, path: str, body: object = None) -> Any:
        for number in range(1, _TRIES + 1):
            try:
                return self._ask(method, path, body)
            except CacheSvcError as error:
                # A comment that was sent and not answered may be there: it is not sent twice.
                if not error.retry or method == "POST" or number == _TRIES:
                    if isinstance(error, Unavailable):  # Its hint is about a registry.
                        raise Unavailable(f"GitHub's API: {error.message}") from None
                    raise
            time.sleep(number)
        raise AssertionError("unreachable")

    def _ask(self, method: str, path: str, body: object) -> Any:
        origin, base = split_url(self.api, "GITHUB_API_URL")
        if origin.scheme != "https" and not origin.loopback:
            raise InvalidRequest(f"GITHUB_API_URL: {origin} is plain HTTP", "https://…")
        headers = {
            "Host": origin.netloc,
            "Accept": "application/vnd.github+json",
            "Accept-Encoding": "identity",
            "Authorization": f"Bearer {self.token}",
            "User-Agent": "cachesvc",
            "X-GitHub-Api-Version": _VERSION,
        }
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
        clock = Clock(time.monotonic() + _SECONDS, _SECONDS)
        path = base.rstrip("/") + path
        with Pool(_SECONDS).request(origin, method, path, headers, data, clock, reuse=False) as response:
            answer = response.body(_MAX_ANSWER_BYTES)
        if response.status in (401, 403, 404):
            raise Forbidden(
                f"{origin}: status {response.status} for a comment on pull request {self.number}",
                "permissions: {pull-requests: write}; the token of a fork's pull request may only read",
            )
        if response.status not in (200, 201):
            raise Unavailable(f"{origin}: status {response.status}")
        try:
            return codec.parse_json(answer, limit=_MAX_ANSWER_BYTES, what="the answer")
        except ValueError as error:
            raise ProtocolMismatch(f"{origin}: {error}") from None


def _number(path: Path) -> int | None:
    """Return the number of the pull request that an event is about."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_EVENT_BYTES + 1)
        event = codec.parse_json(data, limit=_MAX_EVENT_BYTES, what="the event")
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"GITHUB_EVENT_PATH: {error}") from None
    pull = event.get("pull_request") if isinstance(event, dict) else None
    number = pull.get("number") if isinstance(pull, dict) else None
    return number if isinstance(number, int) and number > 0 else None


def _marker(key: str) -> str:
    # A digest: no text that ends a comment of HTML.
    return f"<!-- cachesvc warm-report {hashlib.sha256(key.encode()).hexdigest()[:16]} -->"


def _is_ours(comment: Mapping[str, Any]) -> bool:
    user = comment.get("user")
    is_bot = isinstance(user, dict) and user.get("type") == "Bot"
    return is_bot or comment.get("author_association") in _TRUSTED


def _address(comment: Any) -> str:
    return str(comment.get("html_url", "")) if isinstance(comment, dict) else ""
