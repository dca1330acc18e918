"""Log people in to the web page at an identity provider.

A login makes a token of the person, without a secret: it opens one session, and no route of the API. So what
the session may do, and how it is ended, is decided where it is decided for every token.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from cachesvc.domain.access import Life, Token
from cachesvc.domain.people import Grant, choose, grants_of
from cachesvc.domain.retention import DAY
from cachesvc.index.unit import Unit
from cachesvc.oidc.login import Attempt, Person, authorization_url, code_of_answer, redeem
from cachesvc_client.wire.errors import CacheSvcError, Forbidden, NotFound, Unavailable

from ..context import PersonLogin, Registry
from . import sessions, tokens

_log = logging.getLogger("cachesvc.access")


@dataclass(frozen=True, slots=True)
class Opened:
    """A session of a person: its secret, and the seconds that it lasts."""

    secret: str
    seconds: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What a person may act as, who has to choose one of several: no session is open yet."""

    name: str
    grants: list[Grant]


def begin(registry: Registry, attempt: Attempt) -> str:
    """Returns the address at the provider to which a browser goes. Raises ``Unavailable`` with one line for
    people, ``NotFound`` if no one logs in at a provider here."""
    login = login_of(registry)
    try:
        return authorization_url(
            login.client, registry.outside.issuers.endpoints(login.client.issuer), attempt
        )
    except Unavailable as error:
        raise _unavailable(login, error) from None


def complete(
    registry: Registry,
    attempt: Attempt,
    answer: dict[str, str],
    wanted: str = "",
    before_asking: Callable[[], None] = lambda: None,
) -> Opened | Choice:
    """Opens a session for the person whom the provider's ``answer`` to an attempt names, and ends the
    person's sessions that may do what the person may not do any more.

    ``wanted``: which of several grants the session begins with. ``before_asking``: called before the provider
    is asked about the answer; it may refuse. Raises ``Unauthenticated`` and ``Forbidden``,
    ``Unavailable`` with one line for people.
    """
    login = login_of(registry)
    try:
        endpoints = registry.outside.issuers.endpoints(login.client.issuer)
        code = code_of_answer(login.client, endpoints, attempt, answer)
        before_asking()
        person = redeem(login.client, registry.outside.issuers, attempt, code, registry.clock())
    except Unavailable as error:
        raise _unavailable(login, error) from None
    grants = grants_of(login.rules, login.claim, person.claims)
    try:
        grant = choose(grants, wanted)
    except Forbidden:
        _log_stranger(login, person)
        raise
    if grant is None:
        return Choice(person.name, grants)
    return _open(registry, login, person, grant, grants)


def login_of(registry: Registry) -> PersonLogin:
    """Returns how people log in at a provider. Raises ``NotFound`` if they cannot."""
    if registry.outside.login is None:
        raise NotFound("nobody logs in at an identity provider here", "log in with a token")
    return registry.outside.login


def _open(
    registry: Registry, login: PersonLogin, person: Person, grant: Grant, grants: list[Grant]
) -> Opened:
    """Stores the token, its session and its audit row in one transaction."""
    now, secret = registry.now, sessions.new_secret()
    token = Token(
        token=tokens.new_token_id(),
        label=person.name,
        role=grant.role,
        namespace=grant.namespace,
        life=Life(now, now + login.seconds),
        person=f"{person.issuer} {person.subject}",
    )
    with registry.index.write() as unit:
        ended = _end_older(unit, token, grants, now)
        unit.tokens.add(token, f"login {token.token}")  # which is the hash of no secret
        sessions.add_session(unit, secret, token, now + login.seconds)
        details = {"who": f"oidc:{token.person}", "name": token.label, "role": token.role.name}
        details |= {"expires": str(token.life.expires)} | ({"ended": str(ended)} if ended else {})
        unit.audit.add(now, token.token, "login.open", token.namespace, token.token, **details)
        unit.tokens.forget_given(now - DAY)
    return Opened(secret, login.seconds)


def _end_older(unit: Unit, token: Token, grants: list[Grant], now: int) -> int:
    """Ends the person's logins that go beyond the ``grants`` of today, and those that are too many; returns
    how many."""
    assert token.person is not None
    older = unit.tokens.of_person(token.person, now)
    kept = [one for one in older if any(grant.covers(Grant(one.role, one.namespace)) for grant in grants)]
    kept = kept[: sessions.MOST_SESSIONS - 1]
    ended = [one.token for one in older if one not in kept]
    for name in ended:
        unit.tokens.revoke(name, now)
    return len(ended)


def _log_stranger(login: PersonLogin, person: Person) -> None:
    value = person.claims.get(login.claim)
    number = len(value) if isinstance(value, list) else int(value is not None)
    found = f"of its {number} values the setting oidc_roles names none" if number else "it is missing"
    _log.warning(
        "no role for oidc:%s %s: the claim %s: %s", person.issuer, person.subject, login.claim, found
    )


def _unavailable(login: PersonLogin, error: CacheSvcError) -> Unavailable:
    """Returns what the login page says; the operator's log says why."""
    _log.error("login at %s: %s", login.client.issuer, error)
    return Unavailable("the identity provider cannot be used now", "log in with a token, or try again later")
