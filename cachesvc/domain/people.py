"""Decide what a person may do who logs in at an identity provider: by a claim, and the operator's grants."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cachesvc_client.wire.errors import Forbidden, Unauthenticated
from cachesvc_client.wire.names import Namespace

from .access import ANY, Role

MAX_VALUES = 1000
"""Values of a claim that are read, at most."""
_GRANT = re.compile(r"([a-z]+) in (\S+)")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a person may act as: a role in one namespace, or in all (``*``), as a token has them."""

    role: Role
    namespace: str

    def __str__(self) -> str:
        return f"{self.role.name} in {self.namespace}"

    def covers(self, other: Grant) -> bool:
        """Returns whether anyone who has this grant may do all that the other one allows."""
        return self.role >= other.role and self.namespace in (ANY, other.namespace)


def parse_grant(text: str) -> Grant:
    """Reads ``ROLE in NAMESPACE``. Raises ``ValueError`` with what is allowed."""
    match = _GRANT.fullmatch(text.strip())
    if match is None or match[1] not in Role.__members__:
        raise ValueError(
            f"expected '{'|'.join(Role.__members__)} in NAMESPACE' or '… in *', got {text[:80]!r}"
        )
    namespace = match[2] if match[2] == ANY else Namespace(match[2])
    return Grant(Role[match[1]], namespace)


def grants_of(rules: Mapping[str, Iterable[Grant]], claim: str, claims: Mapping[str, Any]) -> list[Grant]:
    """Returns what the claims of a person allow, without what another of them covers; the strongest first.
    Perhaps it is nothing: no one has a role by default.

    ``rules``: what each value of ``claim`` gives; it is compared letter by letter. Raises ``Unauthenticated``
    if the claim is an address of e-mail that the provider has not verified: anybody may have typed it.
    """
    value = claims.get(claim)
    values = value[:MAX_VALUES] if isinstance(value, list) else [value]
    if claim == "email" and value is not None and claims.get("email_verified") is not True:
        raise Unauthenticated(
            "the provider has not verified your address of e-mail", "confirm it there, then log in again"
        )
    allowed = {grant for one in values if isinstance(one, str) for grant in rules.get(one, ())}
    kept = [one for one in allowed if not any(other != one and other.covers(one) for other in allowed)]
    return sorted(kept, key=lambda grant: (-grant.role, grant.namespace))


def choose(grants: list[Grant], wanted: str) -> Grant | None:
    """Returns the grant that a session begins with: the only one, or the one of several that was ``wanted``
    (as ``str`` writes it); ``None`` if the person has to choose. Raises ``Forbidden`` if there is none."""
    if not grants:
        raise Forbidden("you have no role in this registry", "ask its operator: your groups there decide")
    if len(grants) == 1:
        return grants[0]
    return next((one for one in grants if str(one) == wanted), None)
