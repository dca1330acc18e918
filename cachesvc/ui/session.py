"""Keep a browser logged in: the cookies of a session, the tokens of forms, and where a login leads."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from typing import Literal
from urllib.parse import parse_qsl, urlencode

from fastapi import Request, Response

from cachesvc_client.http.origin import split_url
from cachesvc_client.wire.errors import Forbidden, InvalidRequest

HOME = "/ui"
"""Path of the first page, and beginning of all others."""
SESSION, LOGIN, ATTEMPT = "cachesvc_session", "cachesvc_login", "cachesvc_attempt"
"""Names of the cookies: the session's secret; before a login the secret of the login's form; and during a
login at an identity provider what the answer is compared with."""
ATTEMPT_SECONDS = 600
"""Seconds that a browser has for a login at an identity provider."""
FORM_FIELD = "csrf"
"""Field of every form that proves that one of these pages has sent it."""
_NEXT = re.compile(r"/ui(?:/[A-Za-z0-9._~%:=+@-]+)*(?:\?[A-Za-z0-9._~%:=+@&/*-]*)?")
"""Matches the addresses to which a login may lead: these pages. Two slashes, a backslash, a control character
or ``..`` would lead a browser elsewhere, or out of these pages."""


def is_encrypted(request: Request) -> bool:
    """Returns whether the browser speaks HTTPS, as this server or the proxy before it says. A false word of a
    client makes nothing but that client's own cookies unusable."""
    forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return request.url.scheme == "https" or forwarded == "https"


def may_send_token(request: Request) -> bool:
    """Returns whether a token may travel on this connection: by HTTPS, or to the browser's own machine."""
    if is_encrypted(request):
        return True
    host = request.url.hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_at(request: Request, url: str) -> bool:
    """Returns whether the browser asks at the origin of ``url``."""
    scheme = "https" if is_encrypted(request) else "http"
    try:
        own, _ = split_url(f"{scheme}://{request.headers.get('host', '')}/", "host")
    except InvalidRequest:
        return False
    return own == split_url(url, "url")[0]


def session_secret(request: Request) -> str:
    """Returns the secret of the browser's session; empty if it has none."""
    return request.cookies.get(_name(SESSION, request), "")


def set_session(request: Request, response: Response, secret: str, seconds: int) -> None:
    """Gives the browser a session, and takes the secret of the login's form."""
    _set(request, response, SESSION, secret, seconds)
    _set(request, response, LOGIN, "", 0)


def end_session(request: Request, response: Response) -> None:
    """Takes the session from the browser."""
    _set(request, response, SESSION, "", 0)


def login_secret(request: Request) -> str:
    """Returns the secret of the login's form: the browser's, or a new one."""
    present = request.cookies.get(_name(LOGIN, request), "")
    return present if re.fullmatch(r"[A-Za-z0-9_-]{43}", present) else secrets.token_urlsafe(32)


def set_login(request: Request, response: Response, secret: str) -> None:
    """Gives the browser the secret of the login's form, until the browser ends."""
    _set(request, response, LOGIN, secret, None)


def attempt(request: Request) -> dict[str, str]:
    """Returns what :func:`set_attempt` gave the browser; nothing, if that is over."""
    return dict(parse_qsl(request.cookies.get(_name(ATTEMPT, request), "")[:4096]))


def set_attempt(request: Request, response: Response, **fields: str) -> None:
    """Gives the browser what the answer of an identity provider is compared with. The cookie comes back with
    the navigation from there, as that of a session does not."""
    _set(request, response, ATTEMPT, urlencode(fields), ATTEMPT_SECONDS, "lax")


def end_attempt(request: Request, response: Response) -> None:
    """Takes that from the browser: an answer counts once."""
    _set(request, response, ATTEMPT, "", 0, "lax")


def form_token(secret: str) -> str:
    """Returns what a form of the session, or of the login, with this secret holds in ``FORM_FIELD``."""
    return hmac.new(secret.encode(errors="surrogatepass"), b"cachesvc form", hashlib.sha256).hexdigest()


def demand_form_token(secret: str, fields: dict[str, str]) -> None:
    """Raises ``Forbidden`` unless a page for this session, or this login, has sent the form."""
    sent = fields.get(FORM_FIELD, "").encode(errors="surrogatepass")
    if not secret or not hmac.compare_digest(sent, form_token(secret).encode()):
        raise Forbidden("this form was not sent by a page of this session", "open the page again, and retry")


async def read_form(request: Request) -> dict[str, str]:
    """Returns the fields of a form. Raises ``InvalidRequest`` for another type of body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("", "application/x-www-form-urlencoded"):
        raise InvalidRequest(f"content-type: {kind[:60]!r}", "send the form of this page")
    body = await request.body()
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise InvalidRequest("form: cannot be read", "send the form of this page") from None


def next_page(address: str | None) -> str:
    """Returns where a login leads: ``address`` if it is one of these pages, else the first page."""
    if not address or ".." in address or not _NEXT.fullmatch(address):
        return HOME
    return HOME if address.startswith(f"{HOME}/log") else address


def _name(name: str, request: Request) -> str:
    # The prefix has a browser refuse the cookie from another host of the domain, and without HTTPS.
    return f"__Host-{name}" if is_encrypted(request) else name


def _set(
    request: Request,
    response: Response,
    name: str,
    value: str,
    seconds: int | None,
    samesite: Literal["strict", "lax"] = "strict",
) -> None:
    response.set_cookie(
        _name(name, request),
        value,
        max_age=seconds,
        path="/",
        secure=is_encrypted(request),
        httponly=True,
        samesite=samesite,
    )
