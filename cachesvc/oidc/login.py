"""Log a person in at an identity provider: the authorization code flow of OpenID Connect Core 1.0, with PKCE
(RFC 7636), by the advice of RFC 9700."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from cachesvc_client.wire.errors import CacheSvcError, Unauthenticated, Unavailable, printable

from . import signed
from .documents import Documents
from .issuers import Endpoints, Issuers, check_issuer

MAX_SUBJECT = 255
"""Characters of a subject, at most (OpenID Connect Core 1.0, section 2)."""
MAX_NAME = 100
"""Characters of a person's name that are kept."""
MAX_CODE = 4096
"""Characters of a code, at most."""
_AGAIN = "log in again"


@dataclass(frozen=True, slots=True)
class Client:
    """What the identity provider knows of this registry. ``redirect_uri``: where it sends browsers back to,
    from the settings and never from a request."""

    issuer: str
    client_id: str
    secret: str = field(repr=False)
    redirect_uri: str
    scopes: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of one browser to log in. All parts come from ``secret``, which the browser keeps in a cookie
    and shows to this registry alone: so every replica can end what another one began.

    ``state``: proves that the answer is for this browser. ``nonce``: that the ID token is for this try.
    ``verifier``: that anyone who uses the code began this try.
    """

    secret: str

    @property
    def state(self) -> str:
        """Goes through the browser to the provider and back."""
        return self._part("state")

    @property
    def nonce(self) -> str:
        """Goes to the provider, and comes back in the ID token."""
        return self._part("nonce")

    @property
    def verifier(self) -> str:
        """Goes from this registry to the provider alone."""
        return self._part("verifier")

    @property
    def challenge(self) -> str:
        """The digest of the verifier: it goes to the provider first."""
        return _text(hashlib.sha256(self.verifier.encode()).digest())

    def _part(self, what: str) -> str:
        return _text(hmac.digest(self.secret.encode(), f"cachesvc login {what}".encode(), "sha256"))


@dataclass(frozen=True, slots=True)
class Person:
    """Who has logged in, as the provider's signed token says. ``name``: for people to read; someone may have
    chosen it, so it decides nothing."""

    issuer: str
    subject: str
    name: str
    claims: Mapping[str, Any]


def authorization_url(client: Client, endpoints: Endpoints, attempt: Attempt) -> str:
    """Returns the address at the provider to which a browser goes."""
    query = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": client.redirect_uri,
        "scope": client.scopes,
        "state": attempt.state,
        "nonce": attempt.nonce,
        "code_challenge": attempt.challenge,
        "code_challenge_method": "S256",
    }
    joint = "&" if "?" in endpoints.authorization else "?"
    return f"{endpoints.authorization}{joint}{urlencode(query)}"


def code_of_answer(client: Client, endpoints: Endpoints, attempt: Attempt, answer: Mapping[str, str]) -> str:
    """Returns the code of the answer with which the provider sent the browser back.

    Raises ``Unauthenticated`` for an answer that is not for this attempt, that is of another provider (RFC
    9207), or that says that no one logged in.
    """
    if not hmac.compare_digest(answer.get("state", "").encode(errors="replace"), attempt.state.encode()):
        raise Unauthenticated(
            "this answer is for no login of this browser, or for one that is over", "log in from this page"
        )
    issuer = answer.get("iss")
    if issuer != client.issuer and (issuer is not None or endpoints.names_itself):
        raise Unauthenticated("this answer is not of the provider that was asked", _AGAIN)
    if "error" in answer:
        if answer["error"] == "access_denied":
            raise Unauthenticated("the provider did not let you in, or you ended the login there", _AGAIN)
        raise Unauthenticated(f"the provider refused the login: {answer['error'][:60]!r}", "ask the operator")
    code = answer.get("code", "")
    if not 0 < len(code) <= MAX_CODE:
        raise Unauthenticated("the provider's answer has no code", _AGAIN)
    return code


def redeem(client: Client, issuers: Issuers, attempt: Attempt, code: str, now: float) -> Person:
    """Exchanges a code for an ID token, and returns whom that token names.

    Raises ``Unauthenticated`` for a code that the provider refuses and for a token that is not for this
    client, this attempt and now; ``Unavailable`` if the provider does not answer, or refuses this client.
    """
    endpoints = issuers.endpoints(client.issuer)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": client.redirect_uri,
        "code_verifier": attempt.verifier,
    }
    headers = {}
    if endpoints.secret_in_form:
        form |= {"client_id": client.client_id, "client_secret": client.secret}
    else:
        # Both parts are encoded before they are joined (RFC 6749, section 2.3.1).
        pair = f"{quote(client.client_id, safe='')}:{quote(client.secret, safe='')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    try:
        status, document = Documents(None).post(endpoints.token, check_issuer(client.issuer), form, headers)
    except CacheSvcError as error:
        raise Unavailable(f"issuer {client.issuer}: {error.message}", error.hint) from None
    if status != 200:
        _refused(client, status, document)
    token = document.get("id_token")
    if not isinstance(token, str):
        raise Unavailable(f"issuer {client.issuer}: its answer has no ID token", "oidc_scopes needs openid")
    return verify(client, issuers, attempt, token, now)


def verify(client: Client, issuers: Issuers, attempt: Attempt, text: str, now: float) -> Person:
    """Returns whom an ID token names (OpenID Connect Core 1.0, section 3.1.3.7). Raises what :func:`redeem`
    raises."""
    token = signed.parse(text, _AGAIN)
    if token.issuer != client.issuer:
        raise Unauthenticated("the token is of another issuer", _AGAIN)
    algorithm, key_id = (token.header.get(name) for name in ("alg", "kid"))
    if isinstance(algorithm, str) and isinstance(key_id, str | None):
        issuers.wait(token.issuer, algorithm, key_id)
    signed.verify_signature(token, issuers)
    signed.check_times(token, now)
    audience, party = token.claims.get("aud"), token.claims.get("azp")
    audiences = audience if isinstance(audience, list) else [audience]
    if client.client_id not in audiences:
        raise Unauthenticated("the token is for another service", _AGAIN)
    if party != client.client_id and (party is not None or len(audiences) > 1):
        raise Unauthenticated("the token was given to another service", _AGAIN)
    nonce = token.claims.get("nonce")
    if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), attempt.nonce.encode()):
        raise Unauthenticated("the token is of another login", _AGAIN)
    subject = token.claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT or not subject.isprintable():
        raise Unauthenticated("the token names nobody", _AGAIN)
    return Person(client.issuer, subject, _name(token.claims) or subject[:MAX_NAME], token.claims)


def _refused(client: Client, status: int, document: Mapping[str, Any]) -> None:
    error = str(document.get("error", ""))[:60]
    if error == "invalid_grant":
        raise Unauthenticated("the provider refused the code: it counts once, and for a minute", _AGAIN)
    raise Unavailable(
        f"issuer {client.issuer}: status {status} for this registry's code: {error!r}",
        "the registry's operator: compare oidc_client_id, its secret and public_url with the provider's",
    )


def _name(claims: Mapping[str, Any]) -> str:
    for claim in ("name", "preferred_username", "email"):
        value = claims.get(claim)
        if isinstance(value, str) and value.strip():
            return printable(" ".join(value.split()))[:MAX_NAME]
    return ""


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
