"""Define what all targets of one run share, and what is known of one target before it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cachesvc_client.bundle.seal import Signer, SigningKey
from cachesvc_client.trust.accept import Acceptance
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Lane, Name

from . import kinds_used
from .launcher import Launcher
from .provenance import BuildOrigin
from .spec.plan import Job
from .worker.phase import PhaseResult
from .worker.proven_environment import ProvenEnvironment

if TYPE_CHECKING:
    from cachesvc_client.http.registry import Remote

OnStep = Callable[[Job, str], None]
"""Shows progress: (job, the step that begins now)."""


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """Reaches the registry in which entries are looked up and published.

    ``acceptance`` decides which of its revisions a service would accept. The replays of a check get it as
    variables, with the token and the URL of ``remote``, and with ``trust_root``, the file of the pinned root.
    """

    remote: Remote
    acceptance: Acceptance
    trust_root: Path | None = None


@dataclass(frozen=True, slots=True)
class Sealing:
    """Says who signs what a run makes, how long that holds, and from what it is built.

    ``key`` signs what is published or written; ``None`` in a check. ``interim_key`` lives as long as the run
    and signs the bundles of replays. ``lifetime``: seconds after its signing at which a revision expires;
    ``None``: never. ``origin``: what says who builds. ``remarks``: what a manifest says of it to people.
    """

    key: Signer | None = None
    interim_key: SigningKey = field(default_factory=SigningKey.generate)
    lifetime: float | None = None
    origin: BuildOrigin | None = None
    remarks: Mapping[str, str] = field(default_factory=dict)


Task = Literal["build", "force", "check"]
"""What a run does: *build* what the registry lacks; *force*: what it has too; *check*: nothing, and say
what is cold."""


@dataclass(frozen=True, slots=True)
class WarmContext:
    """Holds what a run works with.

    ``out``: the folder for bundle files; ``None`` publishes to the registry. ``environment``: in which the
    entries are proven; ``None`` makes entries without a proof. ``device``: the file that describes the GPU to
    compile for, which this machine does not have; ``None`` compiles for what is there.
    """

    name: Name
    launcher: Launcher
    on_step: OnStep
    registry: RegistryAccess | None = None
    sealing: Sealing = field(default_factory=Sealing)
    lane: Lane | None = None
    out: Path | None = None
    task: Task = "build"
    environment: ProvenEnvironment | None = None
    device: Path | None = None


@dataclass(frozen=True, slots=True)
class TargetContext:
    """Holds a target after its eager run. ``folder``: temporary; ends with the target."""

    job: Job
    warm: WarmContext
    folder: Path
    eager: PhaseResult
    workload: Workload

    def demanding(self, files: Iterable[kinds_used.FileName]) -> dict[str, str]:
        """Return the variables with which an engine ends where it cannot load its own files among these."""
        return kinds_used.demanding(files) if self.job.is_engine else {}

    def show_step(self, step: str) -> None:
        """Show which step begins, or what one did."""
        self.warm.on_step(self.job, step)
