"""Warm one target: look up, claim, build, deliver, publish."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cachesvc_client.bundle.file import SUFFIX
from cachesvc_client.publication.publish_bundle import publish_bundle
from cachesvc_client.wire.errors import CacheSvcError, ClaimLost, HeadConflict
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.requests.protocol import CommitAnswer

from .build import BuildFailed, EntryBuild
from .claims import claim_or_wait
from .context import TargetContext
from .launcher import Cancelled
from .lookup import check_published, find_published, fresh_outcome
from .verdict.results import Outcome
from .worker.phase import PhaseResult

if TYPE_CHECKING:
    from cachesvc_client.claims.claim import Claim

MAX_CLAIMS = 3
"""Number of claims under which a run that was taken over tries to publish; then the head alone decides."""


class TargetRun:
    """Warms one target, phase by phase, and holds the claim on its entry meanwhile."""

    def __init__(self, target: TargetContext) -> None:
        self._target = target
        self._warm = target.warm
        self._claim: Claim | None = None
        self._notes: list[str] = []

    def run(self) -> Outcome:
        """Return what came of the target.

        Raises ``Cancelled`` if the run was interrupted, and errors that are not the target's own: of the
        registry, the signing key, the disk.
        """
        if self._warm.registry is None or self._warm.task == "force":
            return self._build()
        self._target.show_step("looking up")
        lookup = find_published(self._target)
        if self._warm.task == "check":
            return check_published(self._target, lookup)
        if lookup.manifest is not None:
            return fresh_outcome(self._target, lookup.manifest)
        return self._claim_and_build()

    def _claim_and_build(self) -> Outcome:
        """Build, unless another run does: then what that run publishes is as good."""
        manifest = self._acquire_claim()
        if manifest is not None:
            return fresh_outcome(self._target, manifest, "published by another run meanwhile")
        try:
            return self._build()
        finally:
            if self._claim is not None:
                self._claim.release()

    def _acquire_claim(self) -> Manifest | None:
        """Return what another run has published; or ``None``, with the claim if it could be acquired."""
        outcome = claim_or_wait(self._target)
        if self._warm.launcher.cancelled:
            if outcome.claim is not None:
                outcome.claim.release()
            raise Cancelled
        self._claim = outcome.claim
        if outcome.why:
            self._notes.append(f"compiled without a claim: {outcome.why}")
        return outcome.result

    def _build(self) -> Outcome:
        build = EntryBuild(self._target, self._notes)
        try:
            build.compile()
            replay = build.prove()
        except BuildFailed as error:
            return build.outcome("failed", error.reasons, error.replay, error.trace)
        return self._deliver(build, replay)

    def _deliver(self, build: EntryBuild, replay: PhaseResult) -> Outcome:
        """Seal the entry with the real key, and publish or write it: whole or not at all."""
        warm, job = self._warm, self._target.job
        if replay.files_of_libraries:
            build.notes.append(
                f"a fresh process compiled {len(replay.files_of_libraries)} kernels of libraries (cuDNN's "
                "attention is one): such kernels hold the working directory, so set cwd to the service's"
            )
        outcome = build.outcome("warm", (), replay)
        assert warm.sealing.key is not None
        if warm.launcher.cancelled:
            raise Cancelled
        folder = warm.out or self._target.folder
        path = folder / (f"{warm.name.name}-{job.label}".replace("/", "-") + SUFFIX)
        manifest = build.seal(path, warm.sealing.key, outcome.numbers.for_manifest())
        outcome = replace(outcome, pack_bytes=manifest.pack.size)
        if warm.out:
            return replace(outcome, bundle=str(path))
        self._target.show_step("publish")
        try:
            answer = self._publish(path)
        except HeadConflict:  # another publication is there, and it counts
            raise
        except CacheSvcError as error:
            kept = _keep(path)
            note = f"the entry is proven and kept; publish it with: cachesvc push {kept}" if kept else ""
            notes = (*outcome.notes, *filter(None, [note]))
            status = error.exit_status
            return replace(outcome, status="failed", reasons=(str(error),), notes=notes, error_status=status)
        if isinstance(answer, Manifest):
            reason = "this run was silent for too long, and another one has published"
            return fresh_outcome(self._target, answer, reason)
        return replace(outcome, revision=str(answer.revision))

    def _publish(self, path: Path) -> CommitAnswer | Manifest:
        """Publish the bundle ``path``; or return what another run has published that took the claim over.

        Where that run gave up, this one publishes all the same: its entry is proven already.
        """
        warm = self._warm
        assert warm.registry is not None and warm.sealing.key is not None
        for _ in range(MAX_CLAIMS):
            claim = self._claim
            try:
                ref = claim.commit_ref if claim is not None else None
                answer = publish_bundle(warm.registry.remote, path, warm.sealing.key, claim=ref)
            except ClaimLost as error:
                self._target.show_step(str(error))
                assert claim is not None
                claim.published()
                manifest = self._acquire_claim()
                if manifest is not None:
                    return manifest
                continue
            if claim is not None:
                claim.published()
            return answer
        return publish_bundle(warm.registry.remote, path, warm.sealing.key)


def _keep(path: Path) -> Path | None:
    """Move a bundle that was not published to a folder of its own, for the user alone, and return its new
    path: the compile may have taken an hour. Return ``None`` if the disk has no room for it."""
    try:
        return Path(shutil.move(path, tempfile.mkdtemp(prefix="cachesvc-unpublished-")))
    except OSError:
        return None
