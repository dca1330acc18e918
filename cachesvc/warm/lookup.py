"""Look up what the registry has for a target, and check it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cachesvc_client.wire.compare import INERT
from cachesvc_client.wire.errors import NotFound
from cachesvc_client.wire.protocol import ResolveRequest
from cachesvc_client.wire.records import Manifest

from . import judge
from .context import TargetContext
from .phase import PhaseRequest
from .results import Numbers, Outcome


@dataclass(frozen=True, slots=True)
class Lookup:
    """Says what the registry has for a target. ``reason``: why there is no ``manifest``."""

    manifest: Manifest | None
    reason: str = ""


def find_published(target: TargetContext) -> Lookup:
    """Return the registry's head for this target, workload and environment, verified; or why there is none.

    Raises what ``Remote.resolve`` and ``check_envelope`` raise.
    """
    from cachesvc_client.bundle.check import ExpectedStatement, check_envelope

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
    other_workload = False
    for revision in answer.revisions:
        envelope = revision.envelope_bytes
        verified = check_envelope(envelope, trusted=registry.trusted, expected=expected, now=time.time())
        if verified.manifest.statement.target != target.job.target:
            continue
        if verified.manifest.workload.key == target.workload.key:
            if _expires_late(verified.manifest, target.warm.lifetime):
                return Lookup(verified.manifest)
            return Lookup(None, f"{name} has this target, and it needs a new expiry")
        other_workload = True
    if other_workload:
        return Lookup(None, f"{name} has this target, but of another model, inputs or options")
    for rejected in answer.rejected:
        if rejected.target == target.job.target:
            first = rejected.differences[0]
            problem = "services report it useless" if first.factor == INERT else "for another environment"
            return Lookup(None, f"{name} has this target, but {problem}: {first}")
    return Lookup(None, f"{name} does not have this target")


def _expires_late(manifest: Manifest, lifetime: float | None) -> bool:
    """Return whether a revision is valid for half of ``lifetime`` seconds and has an expiry; without
    ``lifetime`` every revision will do."""
    expires = manifest.statement.expires
    return lifetime is None or (expires is not None and expires - time.time() > lifetime / 2)


def fresh_outcome(target: TargetContext, manifest: Manifest, reason: str = "published already") -> Outcome:
    """Return the outcome of a target that needs no build. ``reason``: why the registry has its entry."""
    return Outcome(
        str(target.job.target),
        "fresh",
        (f"{reason} for this environment and workload (--force compiles again)",),
        numbers=Numbers.from_manifest(manifest.measured),
        files_after=len(manifest.files),
        bytes_after=sum(file.size for file in manifest.files),
        pack_bytes=manifest.pack.size,
    )


def check_published(target: TargetContext, lookup: Lookup) -> Outcome:
    """Restore what the registry has, as a service does, and return whether the process then does no work."""
    manifest, warm = lookup.manifest, target.warm
    if manifest is None:
        return Outcome(str(target.job.target), "cold", (lookup.reason,))
    assert warm.registry is not None
    target.show_step("replay")
    variables = {
        "CACHESVC_URL": warm.registry.remote.url,
        "CACHESVC_TRUSTED_KEYS": ",".join(warm.registry.trusted),
        "CACHESVC_STRICT": "1",
        "CACHESVC_REPORT": "0",  # a check is no start of a service
    }
    token = warm.registry.remote.token
    variables |= {"CACHESVC_TOKEN": token} if token else {}
    variables |= {"CACHESVC_LANE": warm.lane} if warm.lane else {}
    request = PhaseRequest("replay", target.job, name=str(warm.name))
    replay = warm.launcher.run(request, target.folder / "check", variables)
    reasons = judge.remaining_work(replay)
    return Outcome(
        str(target.job.target),
        "cold" if reasons else "warm",
        reasons,
        numbers=judge.numbers(target.eager.times, {}, replay.times),
        observed=replay.observation,
        files_after=len(manifest.files),
        bytes_after=sum(file.size for file in manifest.files),
        pack_bytes=manifest.pack.size,
        replays=1,
        trace=replay.trace,
    )
