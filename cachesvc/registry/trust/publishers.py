"""Manage trusted publishers, and exchange the token of a CI job for a token of minutes."""

from __future__ import annotations

import hashlib
import re
import secrets
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from cachesvc.domain import publishers as rules
from cachesvc.domain.access import ANY, Action, Life, Token, demand
from cachesvc.domain.builders import identity_of
from cachesvc.domain.retention import DAY
from cachesvc.oidc import signed, workload
from cachesvc.oidc.signed import Unverified
from cachesvc.schema.access import TokenAnswer
from cachesvc.schema.publishers import ExchangeRequest, PublisherRecord, PublisherRequest
from cachesvc_client.wire import codec
from cachesvc_client.wire.errors import Forbidden, InvalidRequest, NotFound, Unauthenticated, printable

from ..access import tokens
from ..audit import note
from ..context import Registry

MAX_RULES = 32
"""Rules of one namespace, at most: each may name an issuer that the registry asks."""
_ID = re.compile(r"[a-z0-9-]{1,40}")
_LOG_CLAIMS = (*rules.IDENTITY, *rules.PLACES, "event_name", "sha", "run_id", "actor", "jti")
"""Claims that the audit log keeps, where a token has them."""


RULES_SECONDS = 2.0
"""Seconds until a rule that another replica added, or removed, counts here."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules that name one issuer."""

    rules: tuple[PublisherRecord, ...]


def _rules_key(issuer: str) -> str:
    return f"rules/{hashlib.sha256(issuer.encode()).hexdigest()}"


def add_publisher(registry: Registry, by: Token, request: PublisherRequest) -> PublisherRecord:
    """Adds a rule. Raises ``InvalidRequest`` for one that lets strangers publish, ``Forbidden``."""
    demand(by, Action.admin, request.namespace)
    if registry.outside.issuers.check(request.issuer).scheme != "https":
        demand(by, Action.admin, ANY)  # it makes the registry ask a server of its own machine
    rules.check_rule(request)
    record = PublisherRecord("p-" + secrets.token_hex(8), registry.now, request)
    with registry.index.write() as unit:
        if len(unit.publishers.all(request.namespace)) >= MAX_RULES:
            raise InvalidRequest(
                f"namespace {request.namespace} has {MAX_RULES} rules", "remove one, or let one fit more jobs"
            )
        unit.publishers.add(record)
        details = {"issuer": request.issuer, "audience": request.audience, "claims": _text(request.claims)}
        details |= {"lane": request.lane or "trunk", "role": request.role, "minutes": str(request.minutes)}
        note(registry, unit, by, "publisher.add", request.namespace, record.publisher, **details)
    registry.memory.drop(_rules_key(request.issuer))
    return record


def list_publishers(registry: Registry, by: Token) -> list[PublisherRecord]:
    """Returns the rules of the admin's namespace; for ``*`` all."""
    demand(by, Action.admin, by.namespace)
    with registry.index.read() as unit:
        return unit.publishers.all(by.namespace)


def remove_publisher(registry: Registry, by: Token, publisher: str) -> None:
    """Removes a rule and ends the tokens that it gave: on this replica at once, on the others within 5 s.
    Raises ``NotFound``, also for a rule that the admin may not see."""
    with registry.index.write() as unit:
        record = unit.publishers.get(publisher) if _ID.fullmatch(publisher) else None
        if record is None or by.namespace not in (ANY, record.rule.namespace):
            raise NotFound(f"rule {publisher[:40]!r} does not exist", "see: cachesvc admin publishers list")
        demand(by, Action.admin, record.rule.namespace)
        unit.publishers.remove(publisher)
        # After the removal, which waits for exchanges under way: it ends their tokens too.
        ended = tokens.end_tokens_of(registry, unit, publisher)
        details = {"issuer": record.rule.issuer, "ended": len(ended)}
        note(registry, unit, by, "publisher.remove", record.rule.namespace, publisher, **details)
    tokens.forget_tokens(registry, ended)
    registry.memory.drop(_rules_key(record.rule.issuer))


class Asked(NamedTuple):
    """Says that an issuer is being asked for its keys. ``keys``: what to wait for before :func:`exchange`."""

    issuer: str
    keys: Future[None]


def begin_exchange(registry: Registry, request: ExchangeRequest) -> TokenAnswer | Asked:
    """Does what :func:`exchange` does, if what is known of the issuer's keys is enough; else has the issuer
    asked for them. Raises what :func:`exchange` raises."""
    parsed, records = _trusted(registry, request)
    if asked := _ask(registry, parsed, records):
        return asked
    return _answer(registry, request, parsed, records)


def exchange(registry: Registry, request: ExchangeRequest) -> TokenAnswer:
    """Gives a CI job a token by the rules. Only the answer has its secret. Asks no issuer.

    Raises ``Unauthenticated`` for a token that is not its issuer's, not valid now, or used already;
    ``Forbidden`` if no rule fits; ``Unavailable`` if the issuer's keys cannot be read.
    """
    return _answer(registry, request, *_trusted(registry, request))


def ask_in_memory(registry: Registry, request: ExchangeRequest) -> Asked | None:
    """Does the first half of :func:`begin_exchange` without a look at the index, as far as that goes:
    exchanges for issuers that do not answer come in crowds. Returns ``None`` if more is needed. Raises
    ``Unavailable`` for an issuer of which no keys are known, ``Unauthenticated`` for what is no token."""
    parsed = workload.parse(request.token)
    records = _kept_rules(registry, parsed.issuer)
    if records is None or not isinstance(parsed.header.get("alg"), str):
        return None
    if (asked := _ask(registry, parsed, records)) is None:
        registry.outside.issuers.check_known(parsed.issuer)
    return asked


def _ask(registry: Registry, parsed: Unverified, records: list[PublisherRecord]) -> Asked | None:
    """Has an issuer asked for its keys, if what is known of them is not enough for a token."""
    algorithm, key_id = parsed.header.get("alg"), parsed.header.get("kid")
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        return None
    shares = sorted({record.rule.namespace for record in records})
    keys = registry.outside.issuers.prepare(parsed.issuer, shares, algorithm, key_id)
    return None if keys is None else Asked(parsed.issuer, keys)


def _answer(
    registry: Registry, request: ExchangeRequest, parsed: Unverified, records: list[PublisherRecord]
) -> TokenAnswer:
    job = workload.verify(parsed, registry.outside.issuers, registry.clock())
    grant = rules.choose(records, job.audience, job.claims, request)
    return _give(registry, job, grant)


def _trusted(registry: Registry, request: ExchangeRequest) -> tuple[Unverified, list[PublisherRecord]]:
    """Returns the parts of a job's token, and the rules that name its issuer. Only administrators say which
    servers are asked. Raises ``Unauthenticated``, and ``Forbidden`` if no rule names it."""
    parsed = workload.parse(request.token)
    records = _rules_of(registry, parsed.issuer)
    if not records:
        raise Forbidden(
            f"issuer {parsed.issuer[:120]!r} is not trusted here",
            "an administrator of the namespace adds a rule: cachesvc admin publishers add",
        )
    return parsed, records


def _rules_of(registry: Registry, issuer: str) -> list[PublisherRecord]:
    """Returns the rules that name an issuer. This process keeps them for ``RULES_SECONDS``, since exchanges
    come in crowds; `_give` looks whether a rule is there still."""
    if (kept := _kept_rules(registry, issuer)) is not None:
        return kept
    with registry.index.read() as unit:
        records = unit.publishers.of_issuer(issuer)
    if records:  # anybody can name issuers that no rule has
        registry.memory.put(_rules_key(issuer), codec.canonical(_Rules(tuple(records))), RULES_SECONDS)
    return records


def _kept_rules(registry: Registry, issuer: str) -> list[PublisherRecord] | None:
    kept = registry.memory.get(_rules_key(issuer))
    if kept is None:
        return None
    return list(codec.build(_Rules, codec.parse_json(kept, limit=len(kept), what="rules")).rules)


def _give(registry: Registry, job: workload.Workload, grant: rules.Grant) -> TokenAnswer:
    """Stores the token, its audit row and the use of the job's token in one transaction."""
    rule, now = grant.record.rule, registry.now
    who = printable(f"oidc:{job.issuer} {job.subject}")
    token = Token(
        token=tokens.new_token_id(),
        label=who[: tokens.MAX_LABEL],
        role=grant.role,
        namespace=rule.namespace,
        lane=grant.lane,
        life=Life(now, now + rule.minutes * 60),
        builder=identity_of(job.issuer, job.subject, job.claims),
    )
    with registry.index.write() as unit:
        if not unit.publishers.lock(grant.record.publisher):
            raise Forbidden("the rule for this job was removed just now", "ask the administrator")
        if not unit.publishers.use(job.use, job.expires + signed.SKEW_SECONDS):
            raise Unauthenticated(
                "this job's token was used already: it counts once", "let the CI system issue a new one"
            )
        answer = tokens.store(unit, token, publisher=grant.record.publisher)
        claims = {name: job.claims[name] for name in _LOG_CLAIMS if isinstance(job.claims.get(name), str)}
        details = {"who": who, "claims": printable(_text(claims)), "publisher": grant.record.publisher}
        details |= {
            "role": token.role.name,
            "lane": grant.lane or "trunk",
            "expires": str(token.life.expires),
        }
        unit.audit.add(now, "oidc", "token.exchange", rule.namespace, token.token, **details)
        unit.publishers.forget_used(now)
        unit.tokens.forget_given(now - DAY)
    return answer


def _text(claims: dict[str, str]) -> str:
    return " ".join(f"{name}={value[:100]}" for name, value in claims.items())
