"""Say what a report is about: environment, registry, commit of the project, and how to use the result."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tomllib

from cachesvc_client.console.tables import environment_label
from cachesvc_client.wire.factors import Fingerprint
from cachesvc_client.wire.names import Name

from ..checkout import find_checkout
from ..spec.toml_lines import lines_of


@dataclass(frozen=True, slots=True)
class ReportHead:
    """Describes a run. ``environment``: the fingerprint of this machine. ``registry``: its address, empty
    without one. ``commit``: of the checkout in which the spec lies, empty if it lies in none. ``use``: the
    command that starts a service with the result. ``target_lines``: on which line of the spec each target
    begins, by its id."""

    name: str
    spec: str
    environment: Fingerprint
    python: str
    registry: str = ""
    commit: str = ""
    use: str = ""
    target_lines: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, name: Name, spec: Path, environment: Fingerprint, registry: str = "", use: str = ""
    ) -> ReportHead:
        """Describe a run over ``spec`` in this process's Python."""
        python = platform.python_version()
        return cls(
            str(name),
            str(spec),
            environment,
            python,
            registry,
            project_commit(spec),
            use or use_line(name),
            target_lines(spec),
        )

    def line_of(self, target: str) -> int | None:
        """Return the line of the spec on which a target such as ``bert/float32/default`` begins."""
        return self.target_lines.get(target.partition("/")[0])

    def lines(self) -> list[tuple[str, str]]:
        """Return what a reader is told, as pairs of a label and a text."""
        torch, device, _ = environment_label(self.environment)
        pairs = [
            ("environment", f"torch {torch}, {device}, Python {self.python}"),
            ("registry", self.registry or "none: bundle files"),
            ("commit", self.commit),
        ]
        return [pair for pair in pairs if pair[1]]


def ci_commit(environ: Mapping[str, str] = os.environ) -> str:
    """Return the commit that a CI system names; an empty text elsewhere."""
    return (environ.get("GITHUB_SHA") or environ.get("CI_COMMIT_SHA") or "")[:64]


def project_commit(spec: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Return the commit of the project: the one that a CI system names, else that of the spec's checkout."""
    checkout = find_checkout(spec.absolute().parent)
    return ci_commit(environ) or (checkout.commit if checkout else "")


def target_lines(spec: Path) -> dict[str, int]:
    """Return the line of each target's header, by its id; nothing for a file that is no spec any more."""
    try:
        text = spec.read_text()
        targets = tomllib.loads(text)["target"]
        lines = lines_of(text)
        return {target["id"]: lines["target", number] for number, target in enumerate(targets)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def use_line(name: Name) -> str:
    """Return the command that starts a service with what the registry has under ``name``."""
    short = f"{name.namespace}/{name.name}"
    return f"cachesvc run {short if name.tag == 'latest' else name} -- python serve.py"


def use_bundles_line(folder: Path, trusted: str) -> str:
    """Return the command that starts a service with the bundles of ``folder``, which ``trusted`` signed."""
    return f"CACHESVC_BUNDLE={folder} CACHESVC_TRUSTED_KEYS={trusted} python serve.py"
