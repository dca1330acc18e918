"""Look up what the registry has for a target, and check it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields

from cachesvc_client.bundle.check import ExpectedStatement
from cachesvc_client.trust.accept import Accepted
from cachesvc_client.wire.compare import INERT, WITHDRAWN
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.errors import Corrupt, NotFound, Untrusted
from cachesvc_client.wire.manifest.records import Manifest, Workload
from cachesvc_client.wire.partitions import Offered, PublishedAt, newest_of_targets
from cachesvc_client.wire.requests.protocol import Rejected, ResolveAnswer, ResolveRequest

from .context import RegistryAccess, TargetContext
from .verdict import judge
from .verdict.results import Numbers, Outcome
from .worker.phase import PhaseRequest, PhaseResult


@dataclass(frozen=True, slots=True)
class Lookup:
    """Says what the registry has for a target. ``reason``: why there is no ``manifest``. ``other``: the
    newest entry that services of this target would install all the same, of another workload: only a replay
    knows whether it saves the work."""

    manifest: Manifest | None
    reason: str = ""
    other: Manifest | None = None


def find_published(target: TargetContext) -> Lookup:
    """Return the registry's head for this target, workload and environment, verified; or why there is none.

    A head that services would refuse is none: a signer that the pinned root does not name, another builder
    than the required one, too old. Raises what ``Remote.resolve`` raises; ``Corrupt``; without a pinned root
    also ``Untrusted`` for a signer that is not trusted.
    """
    name, lane, registry = target.warm.name, target.warm.lane, target.warm.registry
    assert registry is not None
    request = ResolveRequest(
        namespace=name.namespace,
        name=name.name,
        fingerprint=target.eager.fingerprint,
        tags=(name.tag,),
        lane=lane,
        model=target.workload.model,
    )
    expected = ExpectedStatement(name.namespace, name.name, (name.tag,), lane)
    try:
        answer = registry.remote.resolve(request)
    except NotFound as error:
        return Lookup(None, error.message)
    return _judge(target, registry, answer, expected)


def _judge(
    target: TargetContext, registry: RegistryAccess, answer: ResolveAnswer, expected: ExpectedStatement
) -> Lookup:
    """Return the first head in the answer that this target needs no build for."""
    name = target.warm.name
    others: dict[Digest, Accepted] = {}
    refused = ""
    for revision in answer.revisions:
        try:
            verified = registry.acceptance.accept_signed(revision.envelope_bytes, expected)
        except Corrupt:
            raise
        except Untrusted as error:
            if registry.acceptance.policy is None:
                raise
            refused = refused or f"services refuse what {name} has: {error.message}"
            continue
        if verified.manifest.statement.target != target.job.target:
            continue
        if verified.manifest.workload.key == target.workload.key:
            return _judge_head(target, registry, verified)
        others[revision.entry] = verified
    if others:
        return _judge_others(target, registry, others)
    for rejected in answer.rejected:
        if rejected.target == target.job.target:
            return Lookup(None, f"{name} has this target, but {_rejection_text(rejected)}")
    return Lookup(None, refused or f"{name} does not have this target")


def _judge_head(target: TargetContext, registry: RegistryAccess, verified: Accepted) -> Lookup:
    """Return the head of this very target and workload; or why it must be built again."""
    name = target.warm.name
    try:
        registry.acceptance.check_build(verified)
    except Untrusted as error:
        return Lookup(None, f"{name} has this target, but services refuse it: {error.message}")
    if registry.acceptance.soon_too_old(verified):
        return Lookup(None, f"{name} has this target, and it will soon be too old for services")
    environment = target.warm.environment
    if environment is not None and (problem := environment.refusal_of(verified.manifest)):
        return Lookup(None, f"{name} has this target, but services refuse it: {problem}")
    if not _expires_late(verified.manifest, target.warm.sealing.lifetime):
        return Lookup(None, f"{name} has this target, and it needs a new expiry")
    return Lookup(verified.manifest)


def _judge_others(
    target: TargetContext, registry: RegistryAccess, others: Mapping[Digest, Accepted]
) -> Lookup:
    """Return that the target must be built, and the entry of another workload that decides until then."""
    name = target.warm.name
    differences = (_difference_text(one.manifest.workload, target.workload) for one in others.values())
    reason = f"{name} has this target, but {min(differences, key=len)}"
    # The registry answers the newest first: what it knows of their age is in no manifest.
    rows = [
        Offered(entry, one.manifest.statement.target, None, PublishedAt(-place, 0), one.lane)
        for place, (entry, one) in enumerate(others.items())
    ]
    deciding = others[newest_of_targets(rows)[target.job.target].entry]
    judged = _judge_head(target, registry, deciding)
    return Lookup(None, reason if judged.manifest else judged.reason, judged.manifest)


def _difference_text(entry: Workload, here: Workload) -> str:
    """Return in what two workloads differ: ``with a difference in model; inputs a``."""
    parts = []
    for field in fields(Workload):
        theirs, ours = getattr(entry, field.name), getattr(here, field.name)
        if theirs == ours:
            continue
        if isinstance(theirs, dict) and isinstance(ours, dict):
            keys = sorted(key for key in {*theirs, *ours} if theirs.get(key) != ours.get(key))
            parts.append(f"{field.name} {', '.join(keys[:5])}" + (" …" if len(keys) > 5 else ""))
        elif field.name in ("model", "script"):
            parts.append(field.name)
        else:
            parts.append(f"{field.name} ({theirs or 'none'} there, {ours or 'none'} here)")
    return f"with a difference in {'; '.join(parts)}"


def _rejection_text(rejected: Rejected) -> str:
    """Return why the registry does not offer an entry, by the factor that decides."""
    first = rejected.differences[0]
    problem = {INERT: "services report it useless", WITHDRAWN: "the registry withholds it"}
    return f"{problem.get(first.factor, 'for another environment')}: {first}"


def _expires_late(manifest: Manifest, lifetime: float | None) -> bool:
    """Return whether a revision is valid for half of ``lifetime`` seconds and has an expiry; without
    ``lifetime`` every revision will do."""
    expires = manifest.statement.expires
    return lifetime is None or (expires is not None and expires - time.time() > lifetime / 2)


def fresh_outcome(target: TargetContext, manifest: Manifest, reason: str = "published already") -> Outcome:
    """Return the outcome of a target that needs no build. ``reason``: why the registry has its entry."""
    return Outcome(
        str(target.job.label),
        "fresh",
        (f"{reason} for this environment and workload (--force compiles again)",),
        numbers=Numbers.from_manifest(manifest.measured),
        files_after=len(manifest.files),
        bytes_after=sum(file.size for file in manifest.files),
        pack_bytes=manifest.pack.size,
    )


def check_published(target: TargetContext, lookup: Lookup) -> Outcome:
    """Restore what the registry has, as a service does, and return whether the process then does no work.

    An entry of another workload is tried too: a changed comment is another model hash, and the same graphs.
    """
    manifest = lookup.manifest or lookup.other
    if manifest is None:
        return Outcome(str(target.job.label), "cold", (lookup.reason,))
    target.show_step("replay")
    replay = _replay_published(target, manifest)
    reasons = judge.remaining_work(replay)
    said = tuple(filter(None, (*replay.log_reasons, lookup.reason)))
    return Outcome(
        str(target.job.label),
        "cold" if reasons else "warm",
        (*said, *reasons) if reasons else (),
        numbers=judge.numbers(target.eager.times, {}, replay.times),
        observed=replay.observation,
        files_after=len(manifest.files),
        bytes_after=sum(file.size for file in manifest.files),
        pack_bytes=manifest.pack.size,
        replays=1,
        notes=() if reasons else said,
        trace=replay.trace,
    )


def _replay_published(target: TargetContext, manifest: Manifest) -> PhaseResult:
    """Start the target as a service does, from the registry, in a fresh process."""
    warm, registry = target.warm, target.warm.registry
    assert registry is not None
    variables = {
        "CACHESVC_URL": registry.remote.url,
        "CACHESVC_STRICT": "1",
        "CACHESVC_REPORT": "0",  # a check is no start of a service
    }
    token = registry.remote.token
    variables |= {"CACHESVC_TOKEN": token} if token else {}
    variables |= {"CACHESVC_LANE": warm.lane} if warm.lane else {}
    variables |= _trust_variables(registry)
    variables |= target.demanding(manifest.files)
    request = PhaseRequest("replay", target.job, name=str(warm.name))
    return warm.launcher.run(request, target.folder / "check", variables)


def _trust_variables(registry: RegistryAccess) -> dict[str, str]:
    """Return the variables by which a service accepts what this run accepts."""
    acceptance, root = registry.acceptance, registry.trust_root
    values = {
        "CACHESVC_TRUSTED_KEYS": ",".join(map(str, acceptance.trusted)),
        "CACHESVC_TRUST_ROOT": str(root) if root is not None else "",
        "CACHESVC_MAX_AGE": f"{acceptance.max_age:.0f}s" if acceptance.max_age is not None else "",
        "CACHESVC_REQUIRE": acceptance.require or "",
    }
    return {name: value for name, value in values.items() if value}
