"""Decide which CI job gets which token: the rules of trusted publishers.

A job's claims were verified before they come here. A rule fits if every one of its claims is in the token,
as text, and equal; a ``*`` at the end of a rule's value stands for any rest. A pull request never gets the
trunk, whatever a rule says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cachesvc.schema.publishers import NUMBER, ExchangeRequest, PublisherRecord, PublisherRequest
from cachesvc_client.wire.errors import Forbidden, InvalidRequest
from cachesvc_client.wire.names import Lane

from .access import Role

IDENTITY = ("sub", "repository", "repository_id", "project_path", "project_id")
"""Claims that say whose job it is. Anybody can have a token of a public issuer, so a rule names one."""
PLACES = ("ref", "ref_path", "environment", "workflow_ref", "job_workflow_ref")
"""Claims that say which of the repository's jobs may write to the trunk; an exact ``sub`` does too."""
_PULL = re.compile(r"refs/(?:pull|merge-requests)/([1-9][0-9]{0,17})/[a-z]+")
_PULL_PREFIXES = ("refs/pull/", "refs/merge-requests/")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a job gets: the rule that fits, its lane with the number filled in, and the role."""

    record: PublisherRecord
    lane: Lane | None
    role: Role


def check_rule(rule: PublisherRequest) -> None:
    """Raises ``InvalidRequest`` for a rule that lets strangers publish."""
    identity = [name for name in IDENTITY if name in rule.claims]
    if not identity:
        raise InvalidRequest(
            "claims: none says whose job it is, and anybody can have a token of this issuer",
            f"add one of: {', '.join(IDENTITY)}",
        )
    for name in identity:
        _check_identity(name, rule.claims[name])
    if rule.role == "write" and rule.lane is None and not _names_a_place(rule.claims):
        raise InvalidRequest(
            "claims: any branch of the repository could write to the trunk",
            f"add one of: {', '.join(PLACES)}, or a sub without *; or give a lane",
        )


def _check_identity(name: str, pattern: str) -> None:
    """Refuses a pattern that ends within a name, as ``org/app*`` does: ``org/app-of-others`` fits it too."""
    prefix = pattern.removesuffix("*")
    if prefix == pattern:
        return
    deep = "/" in prefix or prefix.count(":") > 1
    if not (deep and prefix.endswith(("/", ":"))):
        raise InvalidRequest(
            f"claims: {name} = {pattern[:80]!r} fits strangers",
            "name the owner too, and end before the * with / or :, as in org/* or repo:org/app:*",
        )


def _names_a_place(claims: Mapping[str, str]) -> bool:
    exact_subject = "sub" in claims and not claims["sub"].endswith("*")
    return exact_subject or any(claims.get(name, "*") != "*" for name in PLACES)


def choose(
    records: Iterable[PublisherRecord],
    audience: str,
    claims: Mapping[str, object],
    request: ExchangeRequest,
) -> Grant:
    """Returns what the job of these claims gets. ``records``: the rules of the token's issuer.

    Of several rules that fit, the one with the higher role counts, then the trunk before a lane, then the
    older. Raises ``Forbidden`` that says what differs, to the job of a repository that a rule names.
    """
    reasons = list[str]()
    grants = []
    for record in records:
        reason = _difference(record.rule, audience, claims, request)
        if reason is None:
            lane = lane_of(record.rule, claims)
            if request.lane is not None and lane != request.lane:
                reason = f"rule {record.publisher} gives {_where(lane)}, not lane {request.lane}"
            else:
                grants.append(Grant(record, lane, _role(record.rule, request)))
        if reason and _is_of(record.rule, claims):
            reasons.append(reason)
    if not grants:
        job = next(
            (
                f"{name} {claims[name]!r}"[:200]
                for name in ("repository", "project_path", "sub")
                if name in claims
            ),
            "",
        )
        raise Forbidden(
            f"no trusted publisher fits this job ({job}): {'; '.join(reasons[:3]) or 'no rule names it'}",
            "an administrator of the namespace adds a rule: cachesvc admin publishers add",
        )
    return min(
        grants,
        key=lambda grant: (
            -grant.role,
            grant.lane is not None,
            grant.record.created,
            grant.record.publisher,
        ),
    )


def lane_of(rule: PublisherRequest, claims: Mapping[str, object]) -> Lane | None:
    """Returns the lane that a job of these claims writes to; ``None`` is the trunk."""
    if rule.lane is None:
        return None
    return Lane(rule.lane.replace(NUMBER, pull_number(claims) or "", 1))


def pull_number(claims: Mapping[str, object]) -> str | None:
    """Returns the number of the pull request or merge request that a job runs for."""
    for name in ("ref", "ref_path"):
        match = _PULL.fullmatch(str(claims.get(name, "")))
        if match:
            return match[1]
    return None


def is_pull_request(claims: Mapping[str, object]) -> bool:
    """Returns whether anything in the claims says that the job runs for a pull request. One sign is enough:
    in a job of GitHub's event ``pull_request_target``, ``ref`` is the branch that the request goes to."""
    refs = [str(claims.get(name, "")) for name in ("ref", "ref_path")]
    events = [str(claims.get(name, "")) for name in ("event_name", "pipeline_source")]
    return (
        any(ref.startswith(_PULL_PREFIXES) for ref in refs)
        or any("pull_request" in event or "merge_request" in event for event in events)
        or str(claims.get("sub", "")).endswith(":pull_request")
        or bool(claims.get("head_ref"))
    )


def _difference(
    rule: PublisherRequest, audience: str, claims: Mapping[str, object], request: ExchangeRequest
) -> str | None:
    """Returns why a rule does not fit; ``None`` if it does."""
    if request.namespace is not None and rule.namespace != request.namespace:
        return f"a rule is for namespace {rule.namespace}"
    if rule.audience != audience:
        return f"the token is not for the audience {rule.audience!r}"
    for name, pattern in rule.claims.items():
        value = claims.get(name)
        if not isinstance(value, str):
            return f"the claim {name} is missing"
        if not _fits(pattern, value):
            return f"the claim {name} is {value[:120]!r}, and not {pattern!r}"
    if rule.lane is None and is_pull_request(claims):
        return "a pull request never gets the trunk"
    if rule.lane is not None and NUMBER in rule.lane and pull_number(claims) is None:
        return f"the lane {rule.lane} is for pull requests"
    if request.role == "write" and rule.role != "write":
        return f"the rule gives {rule.role}"
    return None


def _is_of(rule: PublisherRequest, claims: Mapping[str, object]) -> bool:
    """Returns whether the rule names this job's repository, so that its people may know what differs. A
    stranger learns nothing about the rules."""
    named = [name for name in IDENTITY if name in rule.claims and name != "sub"] or ["sub"]
    return all(
        isinstance(value := claims.get(name), str) and _fits(rule.claims[name], value) for name in named
    )


def _fits(pattern: str, value: str) -> bool:
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern


def _role(rule: PublisherRequest, request: ExchangeRequest) -> Role:
    return Role[request.role or rule.role]


def _where(lane: Lane | None) -> str:
    return "the trunk" if lane is None else f"lane {lane}"
