"""Decides what may be restored on the installed torch: every entry, entries with a proof, or none.

*supported*: the project's tests ran on this release, on this kind of device (`releases.TESTED`). *by proof*:
any other torch from 2.8 on, if its sources have each hook that an entry needs. An entry is used there if
`cachesvc warm` has proven it on exactly this version. *not usable*: anything else; no hook stays in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..hooks.lookup import LOST, look_up
from ..hooks.table import Hook
from ..wire.errors import Incompatible, printable
from ..wire.factors import Fingerprint
from ..wire.manifest.records import Manifest
from . import releases

State = Literal["supported", "by proof", "not usable"]
_FROZEN = (
    "not usable: this program is frozen (PyInstaller, cx_Freeze), so torch's code is not what its files hold "
    "and nothing can be compared with a builder's"
)
_WARM_HERE = "publish it with cachesvc warm on this torch, with this version of cachesvc"


@dataclass(frozen=True, slots=True)
class Support:
    """Says what may be restored in one environment.

    Attributes:
        state: What may be restored.
        line: The state in words, for a log and for doctor.
        general: Full names of the hooks that every entry needs.
        of_kinds: By kind, full names of the hooks that an entry with files of this kind needs too.
        of_gpu: Those of these names that only an entry with code for a GPU needs.
        present: Those of these names that the installed sources have. Empty if ``state`` is *supported*,
            since no one has looked.
    """

    state: State
    line: str
    general: tuple[str, ...] = ()
    of_kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    of_gpu: frozenset[str] = frozenset()
    present: frozenset[str] = frozenset()

    def needs(self, kinds: Iterable[str], gpu: bool = True) -> tuple[str, ...]:
        """Return the full names of the hooks that an entry with files of these kinds needs, sorted.

        ``gpu``: whether the entry has code for a GPU.
        """
        names = {*self.general}.union(*(self.of_kinds.get(kind, ()) for kind in kinds))
        return tuple(sorted(names if gpu else names - self.of_gpu))

    def first_missing(self, names: Iterable[str]) -> str | None:
        """Return the first of these hooks that the installed sources lack; ``None`` if they have all."""
        return next((name for name in names if name not in self.present), None)


def decide(
    fingerprint: Fingerprint, general: Iterable[Hook], of_kinds: Mapping[str, Iterable[Hook]]
) -> Support:
    """Decide what may be restored in the environment of a fingerprint.

    ``general``: the hooks of every entry. ``of_kinds``: by kind, the hooks of entries with files of that
    kind. Sources are read only for a torch that is not supported, in 20 ms; torch is never imported. Never
    raises.
    """
    torch, triton = fingerprint.get("torch"), str(fingerprint.get("triton", ""))
    platform, gpu = str(fingerprint.get("platform", "")), "gpu" in fingerprint
    if getattr(sys, "frozen", False):
        return Support("not usable", _FROZEN)
    if not platform.startswith("linux"):
        return Support("not usable", f"cachesvc works on Linux; this is {platform or 'unknown'}")
    refusal = releases.refusal(None if torch is None else str(torch))
    if refusal is None and gpu:
        refusal = releases.triton_refusal(triton)
    if refusal is not None:
        return Support("not usable", refusal)
    on_gpu = f" with triton {triton or '(none)'} on a GPU" if gpu else ""
    versions = printable(f"torch {torch}{on_gpu}")
    needed = _needed(general, gpu)
    by_kind = {kind: _needed(hooks, gpu) for kind, hooks in of_kinds.items()}
    names, kinds = _names(needed), {kind: _names(hooks) for kind, hooks in by_kind.items()}
    every = (*needed, *(hook for hooks in by_kind.values() for hook in hooks))
    of_gpu = frozenset(_names(hook for hook in every if hook.role == "gpu"))
    if releases.is_tested(str(torch), triton, gpu=gpu):
        return Support("supported", f"{versions} is supported", names, kinds, of_gpu)
    present = present_names(every, fingerprint)
    line = (
        f"{versions} is not among the tested releases: entries that cachesvc warm has proven on it are used"
    )
    support = Support("by proof", line, names, kinds, of_gpu, present)
    missing = support.first_missing(names)
    if missing is None:
        return support
    return Support("not usable", f"not usable: hook {missing} is missing in {versions}")


def check_proof(manifest: Manifest, support: Support, fingerprint: Fingerprint) -> None:
    """Raise ``Incompatible`` if an entry needs a proof in this environment and its manifest has none that
    counts.

    ``fingerprint``: this environment's. An entry that has nothing for a GPU needs no certain Triton.
    """
    if support.state == "supported":
        return
    name = f"{manifest.statement.full_name} {manifest.statement.target}"
    if support.state == "not usable":
        raise Incompatible(f"{name}: {support.line}", "see: cachesvc-client doctor")
    here, proof = str(fingerprint.get("torch")), manifest.proof
    if proof is None:
        raise Incompatible(f"{name}: not proven on torch {here}: its manifest has no proof", _WARM_HERE)
    needed = support.needs({record.kind for record in manifest.files}, gpu="gpu" in manifest.scopes)
    unproven = next((hook for hook in needed if hook not in proof.hooks), None)
    missing = support.first_missing(proof.hooks)
    triton = fingerprint.get("triton")
    if missing is not None:
        problem = f"not usable: hook {missing} is missing in torch {here}"
    elif proof.torch != here:
        problem = f"proven on torch {proof.torch}, and here is {here}"
    elif "gpu" in manifest.scopes and proof.triton != triton:
        problem = f"proven with triton {proof.triton}, and here is {triton}"
    elif unproven is not None:
        problem = f"its proof does not name hook {unproven}"
    elif not proof.known_probe:
        problem = f"its proof is of {proof.probe}, which this client does not know"
    else:
        return
    raise Incompatible(f"{name}: {problem}", _WARM_HERE)


def present_names(hooks: Iterable[Hook], fingerprint: Fingerprint) -> frozenset[str]:
    """Return the full names of the hooks that the installed torch and Triton have, by their sources.

    ``fingerprint``: the installed versions.
    """

    def release(package: str) -> str | None:
        version = fingerprint.get(package)
        return releases.release(str(version)) if version is not None else None

    states = look_up(hooks, folder=releases.package, release=release)
    return frozenset(hook.name for hook, presence in states if presence not in LOST)


def _needed(hooks: Iterable[Hook], gpu: bool) -> list[Hook]:
    roles = {"safety", "restore", "count"} | ({"gpu"} if gpu else set())
    return [hook for hook in hooks if hook.role in roles and hook.path]


def _names(hooks: Iterable[Hook]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(hook.name for hook in hooks))
