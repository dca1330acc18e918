"""Defines the proof of an entry: on which torch, and with which hooks, `cachesvc warm` showed that it works.

A release of torch that the project's tests do not know uses an entry only with such a proof. The proof is
signed with the manifest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PROBE = "cachesvc.conformance/1"
"""Name and version of the conformance probe that this client's builders run."""

_PROBE = re.compile(r"cachesvc\.conformance/[1-9][0-9]{0,5}")
"""Matches the probes that this client accepts: a newer one checks no less."""
_HOOK = re.compile(r"[A-Za-z0-9_.]{1,200}")
"""Matches the full name of a hook."""
_MOST_HOOKS = 200
"""Largest number of hooks that a proof names."""
_LONGEST_VERSION = 120
"""Largest number of characters of a version."""


@dataclass(frozen=True, slots=True)
class Proof:
    """States that an entry was restored by a fresh process that compiled nothing, and that the conformance
    probe passed in the same environment.

    Attributes:
        torch: The whole version of the torch that ran, with its local part.
        hooks: Full names of the hooks that the entry needs, all of which were in place.
        triton: The whole version of the Triton that was installed; ``None`` if there was none.
        probe: Name and version of the probe.
    """

    torch: str
    hooks: tuple[str, ...]
    triton: str | None = None
    probe: str = PROBE

    def __post_init__(self) -> None:
        for name, version in (("torch", self.torch), ("triton", self.triton or "none")):
            if not 0 < len(version) <= _LONGEST_VERSION or not version.isprintable():
                raise ValueError(f"proof.{name}: {version[:60]!r} is no version")
        if len(self.hooks) > _MOST_HOOKS or not all(map(_HOOK.fullmatch, self.hooks)):
            raise ValueError(f"proof.hooks: at most {_MOST_HOOKS} full names of hooks")
        if not self.probe.isprintable() or len(self.probe) > _LONGEST_VERSION:
            raise ValueError("proof.probe: no name and version of a probe")

    @property
    def known_probe(self) -> bool:
        """Return whether this client accepts the probe."""
        return _PROBE.fullmatch(self.probe) is not None

    def __str__(self) -> str:
        triton = f" with triton {self.triton}" if self.triton else ""
        return f"on torch {self.torch}{triton}, {len(self.hooks)} hooks, {self.probe}"
