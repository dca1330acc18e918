"""Run the replicas of a registry over one column of backends, and end or start again one of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hosts import Registry, registry
from benchmarks.load.columns import PREFIX, Embedded, Production

CLAIM_SECONDS = 10
"""The setting ``claim_seconds`` of these registries: after that silence of its holder a claim is free."""


@dataclass(frozen=True)
class Replicas:
    """The running replicas, which share their index and their packs."""

    replicas: tuple[Registry, ...]

    @property
    def first(self) -> Registry:
        """Return the replica that was started first, whose token and keys all share."""
        return self.replicas[0]

    @property
    def addresses(self) -> list[str]:
        """Return ``host:port`` of each replica."""
        return [replica.address for replica in self.replicas]

    def cpu_seconds(self) -> float:
        """Return the user and system time of all replicas, by proc(5)."""
        return sum(cpu_seconds(replica.pid) for replica in self.replicas)

    def peak_mib(self) -> int:
        """Return the largest memory that one replica had, in MiB; one that was killed does not count."""
        return max(_peak_mib(replica.pid) for replica in self.replicas)


@contextmanager
def replicas(column: Embedded | Production, folder: Path, number: int) -> Iterator[Replicas]:
    """Run ``number`` replicas over new backends of a column for the length of the block.

    An embedded registry has one replica. The first start makes token and keys, which the others read.
    """
    settings, _ = column.fill_index(folder / "data", 0)
    variables = {f"{PREFIX}{name.upper()}": value for name, value in settings.items()}
    variables[f"{PREFIX}CLAIM_SECONDS"] = str(CLAIM_SECONDS)
    if isinstance(column, Production):
        variables |= column.gateway.variables
    with ExitStack() as stack:
        first = stack.enter_context(registry(folder / "data", **variables))
        others = []
        for each in range(1, number if isinstance(column, Production) else 1):
            other = stack.enter_context(registry(folder / f"replica-{each}", **variables))
            others.append(Registry(other.url, first.token, first.trust, first.signing_key, other.pid))
        yield Replicas((first, *others))


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process, by proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    return 0
