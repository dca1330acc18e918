"""Owns ``doctor``: the checks whether this environment can hit, and how to fix it if it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .. import kinds
from ..bundle.check import CLOCK_SKEW_SECONDS
from ..bundle.file import bundle_files
from ..bundle.seal import require_bound_keys
from ..config.settings import Config
from ..console.tables import aligned
from ..environment import releases
from ..environment.detect import detect
from ..environment.level_choice import choose_level
from ..environment.variables import obsolete_line
from ..hooks.lookup import HookState, look_up
from ..http.registry import Probe, Remote
from ..node.folder_probe import FolderProbe
from ..node.store import NodeStore
from ..node.store_root import SETTING, candidates, choose_store, probe_candidate
from ..outcome.send import node_id
from ..process.every_hook import every_hook, support_of
from ..publication.as_you_go import MAY_WRITE, with_lane
from ..publication.signer import signer_of
from ..queries.offer import ask_offer
from ..wire.errors import CacheSvcError
from ..wire.factors import Fingerprint
from ..wire.names import Name
from ..wire.text import count_text
from .attach_check import REMEDY, goes_first, has_pth, look_at_start

Status = Literal["ok", "warn", "fail"]
_SKEW_WARNING = 30
"""Seconds between this clock and the registry's, from which on `doctor` warns."""
_EXPIRES_SOON = 7 * 86400
"""Seconds before a token expires, from which on `doctor` warns."""
_OFF = {
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
"""Variables with values that make PyTorch read no cache."""
_RISKY = {
    "CI": "it alone changes PyTorch's AOT keys: set it alike in build and service",
    "TORCH_CACHING_PRECOMPILE": "it makes PyTorch's keys random: unset it",
    "TORCH_COMPILE_DEBUG": "it changes PyTorch's keys: unset it",
}
"""Variables that change PyTorch's keys, and what to do about each."""


@dataclass(frozen=True, slots=True)
class Check:
    """Holds the result of one check.

    ``found``: what the check found. ``mend``: how to fix what is not ``ok``. The JSON output has these names.
    """

    status: Status
    what: str
    found: str
    mend: str = ""


def diagnose(names: tuple[Name, ...] = ()) -> list[Check]:
    """Run all checks, in the order in which a restore would fail, and return their results.

    ``names``: check also whether entries under these names fit; by default the names of ``CACHESVC_NAME``.
    A check that fails raises nothing.
    """
    here = detect()
    checks = [_torch(here), _hooks(), _gpu(here), _compiler(here), *_settings(here), _threads(here)]
    checks.append(_bootstrap())
    checks += list(_folders())
    try:
        config = with_lane(Config.read())
    except CacheSvcError as error:
        return [*checks, Check("fail", "configuration", error.message, error.hint)]
    if config.mode == "off":
        checks.append(Check("warn", "mode", "CACHESVC_MODE=off: nothing is restored", "unset it"))
    checks += [*_store(config), *_keys(config, names or config.names)]
    if config.bundle is not None and not names:
        return [*checks, _bundle(config.bundle)]
    return [*checks, *_registry(config, here, names or config.names)]


def render(checks: list[Check]) -> str:
    """Return one line for each check."""
    rows = [
        (check.status, check.what, check.found + (f" ({check.mend})" if check.mend else ""))
        for check in checks
    ]
    return aligned(rows)


def _torch(here: Fingerprint) -> Check:
    support = support_of(here)
    if support.state == "not usable":
        fix = "install torch in this environment" if "torch" not in here else ""
        return Check("fail", "versions", support.line, fix)
    versions = f"torch {here['torch']}, triton {here.get('triton', 'none')}, {here['python_abi']}"
    text = f"{versions}, {here['platform']}: {support.line}"
    return Check("ok" if support.state == "supported" else "warn", "versions", text)


def hook_states() -> list[HookState]:
    """Return every name that cachesvc wraps, and whether the installed torch and Triton have it."""
    versions = {"torch": releases.torch()[0], "triton": releases.triton()}

    def release(package: str) -> str | None:
        version = versions.get(package)
        return releases.release(version) if version is not None else None

    return look_up(every_hook(), folder=releases.package, release=release)


def render_hooks(states: Iterable[HookState]) -> str:
    """Return for each hook its state, its name, what cachesvc does there, and what a missing name means."""
    lines = []
    for hook, presence in states:
        lines.append(f"{presence}: {hook.name}")
        lines.append(f"    {hook.purpose}" + (f"; without it {hook.if_missing}" if hook.if_missing else ""))
    return "\n".join(lines)


def _hooks() -> Check:
    states = hook_states()
    lost = [state for state in states if state.presence in ("missing", "no such module") and state.hook.path]
    there = sum(state.presence == "there" for state in states)
    if not lost:
        return Check("ok", "hooks", f"{there} names of torch and Triton are where cachesvc wraps them")
    names = ", ".join(f"{hook.path} ({hook.if_missing})" for hook, _ in lost)
    return Check("warn", "hooks", f"missing: {names}", "see: cachesvc-client doctor --hooks")


def _gpu(here: Fingerprint) -> Check:
    if "gpu" in here:
        return Check(
            "ok", "gpu", f"{here['gpu']}, capability {here['compute_capability']}, driver {here['driver']}"
        )
    if here.get("gpu_count"):
        return Check(
            "warn",
            "gpu",
            "several models, and CUDA's order of them is not known: entries for GPUs are refused",
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )
    if "cuda" in here:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        visible = (
            f"none visible (CUDA_VISIBLE_DEVICES={hidden!r})" if hidden is not None else "none, or no driver"
        )
        return Check(
            "warn", "gpu", f"{visible}; torch is built for CUDA {here['cuda']}", "only CPU entries fit here"
        )
    return Check("ok", "gpu", "torch is built for the CPU")


def _compiler(here: Fingerprint) -> Check:
    isa = f"vectors: {here.get('cpu_isa', 'unknown')}"
    command = os.environ.get("CXX", "g++")
    if shutil.which(command) is None:
        return Check("ok", "compiler", f"none: what an entry lacks will run eager or fail; {isa}")
    if failure := _compiler_failure(command):
        fix = "set CXX to one that works; what is restored needs none"
        return Check("fail", "compiler", f"{command} compiles nothing: {failure}", fix)
    return Check("ok", "compiler", f"{here.get('cxx', command)}; {isa}")


def _compiler_failure(command: str) -> str:
    """Return why a compiler fails for an empty program; nothing if it does not."""
    try:
        done = subprocess.run(
            [command, "-x", "c++", "-fsyntax-only", "-"],
            input=b"int main() {}",
            capture_output=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return "" if done.returncode == 0 else (said[0][:200] if said else f"exit status {done.returncode}")


def _settings(here: Fingerprint) -> Iterator[Check]:
    for name, value in _OFF.items():
        if os.environ.get(name) == value:
            yield Check("fail", "settings", f"{name}={value}: PyTorch reads no cache", f"unset {name}")
    for line in filter(None, (obsolete_line(), choose_level(os.environ).line, *kinds.REFUSED)):
        yield Check("warn", "settings", line)
    for name, fix in _RISKY.items():
        if os.environ.get(name):
            yield Check("warn", "settings", f"{name}={os.environ[name][:40]}", fix)
    settings = here.get("settings")
    if isinstance(settings, list):
        yield Check("ok", "settings", f"{' '.join(settings)}: entries must be built with the same")


def _threads(here: Fingerprint) -> Check:
    if "threads" in here:
        return Check("ok", "threads", f"{here['threads']}")
    if "gpu" in here:
        return Check("ok", "threads", "not set; matters for CPU graphs only")
    return Check(
        "ok",
        "threads",
        "not set, so as many as there are cores: CPU graphs of a builder with another number do not fit; "
        "OMP_NUM_THREADS sets it on both",
    )


def _bootstrap() -> Check:
    if has_pth():
        return Check(
            "ok",
            "bootstrap",
            "the .pth file is in place: CACHESVC_NAME or CACHESVC_BUNDLE alone attaches every process",
        )
    start = look_at_start([sys.executable], os.environ)
    if start is not None and start.attaches:
        return Check("ok", "bootstrap", "sitecustomize attaches every process that has this PYTHONPATH")
    if start is not None and (first := goes_first(start)):
        found = f"{first} goes first and does not run ours: nothing attaches"
        return Check("fail", "bootstrap", found, REMEDY)
    return Check(
        "warn",
        "bootstrap",
        "the .pth file is not in place: CACHESVC_NAME or CACHESVC_BUNDLE alone attaches nothing",
        "install cachesvc-client with pip, or start with: cachesvc-client run",
    )


def _folders() -> Iterator[Check]:
    """Check the cache folders that variables name: a restore uses them, so they must be writable."""
    for name in kinds.VARIABLES:
        path = os.environ.get(name)
        if path:
            folder = Path(path)
            while not folder.exists() and folder != folder.parent:
                folder = folder.parent
            if _writable(folder):
                yield Check("ok", "folders", f"{name}={path}: writable")
            else:
                yield Check("fail", "folders", f"{name}={path}: not writable", "name another, or unset it")


def _writable(folder: Path) -> bool:
    """Return whether a file can be written: permissions show no read-only mount, and root has them all."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _store(config: Config) -> Iterator[Check]:
    """Check each folder in which the node store may lie, and then the one that is used."""
    choice = choose_store(config.store)
    for root in candidates(config.store):
        absent = root != choice.root and not root.exists()
        yield _candidate(probe_candidate(root), config.store)
        if absent:  # the probe has made it
            with suppress(OSError):
                root.rmdir()
    try:
        store = NodeStore(choice.demand())
    except CacheSvcError as error:
        yield Check("fail", "node store", error.message, error.hint)
        return
    if choice.refused and choice.refused[0].folder == config.store:
        found = f"{SETTING} is not used: {choice.refused[0]}; {store.root} is used"
        yield Check("fail", "node store", found, "name another folder, or unset it")
        return
    room = os.statvfs(store.root)
    free = room.f_bavail * room.f_frsize
    if free < 1 << 30:
        yield Check("warn", "node store", f"{store.root}: {free >> 20} MiB free", "free some room")
        return
    yield Check("ok", "node store", f"{store.root}: usable, {free >> 30} GiB free")


def _candidate(found: FolderProbe, named: Path | None) -> Check:
    """Return what each step of the probe said of a folder in which the node store may lie."""
    said = ", ".join(f"{step} {word}" for step, word in found.steps())
    text = f"{SETTING}={found.folder}: {said}" if found.folder == named else f"{found.folder}: {said}"
    if found.usable:
        return Check("ok", "candidate", text)
    return Check("warn", "candidate", text, "not used")


def _bundle(path: Path) -> Check:
    """Check for bundle files at CACHESVC_BUNDLE, which replaces the registry."""
    try:
        files = bundle_files(path)
    except CacheSvcError as error:
        return Check("fail", "bundle", f"{error.message}: nothing is restored", error.hint)
    return Check("ok", "bundle", f"{path}: {len(files)} of them, and no registry is asked")


def _keys(config: Config, names: tuple[Name, ...]) -> Iterator[Check]:
    try:
        require_bound_keys(config.trusted_keys, (name.namespace for name in names))
    except CacheSvcError as error:
        yield Check("fail", "trust", error.message, error.hint)
    if config.trusted_keys:
        keys = ", ".join(
            key.key.short + (f" for {key.namespace}" if key.namespace else "") for key in config.trusted_keys
        )
        yield Check("ok", "trust", f"{count_text(len(config.trusted_keys), 'trusted key')}: {keys}")
    if config.trust_root is not None:
        yield Check("ok", "trust", f"the registry's signers follow from the pinned root {config.trust_root}")
    if not config.trusted_keys and config.trust_root is None:
        yield Check(
            "fail",
            "trust",
            "no key is trusted: nothing is installed",
            "set CACHESVC_TRUSTED_KEYS or log in with --trust",
        )
    if config.require is not None:
        yield Check("ok", "require", f"every revision must be of {config.require}")
    try:
        signer = signer_of(config)
        if signer is not None:
            variable = config.signing_key_env and f"the variable {config.signing_key_env}"
            where = variable or config.signing_key or f"the program {config.signer[0]}"
            yield Check("ok", "signing key", f"{where}: {signer.public.short}")
    except CacheSvcError as error:
        yield Check("warn", "signing key", error.message, error.hint or "publishing needs it")


def _registry(config: Config, here: Fingerprint, names: tuple[Name, ...]) -> Iterator[Check]:
    if config.url is None:
        hint = "set CACHESVC_URL or run: cachesvc login URL"
        yield Check("warn", "registry", "none is configured: only bundles", hint)
        return
    try:
        with Remote(config.url, config.token) as remote:
            probe = remote.probe()
            yield from _probe_checks(config, probe)
            for name in names:
                yield _name_check(remote, config, here, name)
    except CacheSvcError as error:
        yield Check("fail", "registry", error.message, error.hint)


def _probe_checks(config: Config, probe: Probe) -> Iterator[Check]:
    text = f"{config.url}: cachesvc {probe.info.version}, API {probe.info.api}, {probe.seconds * 1000:.0f} ms"
    yield Check("ok", "registry", text)
    if probe.whoami is None:
        yield Check("fail", "token", "none", "set CACHESVC_TOKEN or log in with --token-file")
    else:
        who = probe.whoami
        left = None if who.expires is None else who.expires - time.time()
        until = "" if left is None else f", for {left / 86400:.0f} more days"
        text = f"{who.role} on {who.namespace}{until}"
        if config.mode == "readwrite" and who.role not in MAY_WRITE:
            yield Check("warn", "token", f"{text}, but CACHESVC_MODE=readwrite", "use a token that may write")
        elif left is not None and left < _EXPIRES_SOON:
            yield Check("warn", "token", text, "it expires soon: make another")
        else:
            yield Check("ok", "token", text)
    yield Check("ok", "node", f"{node_id(config.url or '')}: the registry's operator sees it in reports")
    if probe.skew is not None:
        off = f"{abs(probe.skew):.0f} s {'ahead of' if probe.skew > 0 else 'behind'} the registry's"
        if abs(probe.skew) > CLOCK_SKEW_SECONDS:
            yield Check("fail", "clock", off, "set this machine's clock: expiries and sequences are off")
        elif abs(probe.skew) > _SKEW_WARNING:
            yield Check("warn", "clock", off, "set this machine's clock")
        else:
            yield Check("ok", "clock", "agrees with the registry's")


def _name_check(remote: Remote, config: Config, here: Fingerprint, name: Name) -> Check:
    try:
        offer = ask_offer(remote, config, name, config.tag_fallback, here, here)
        offer.demand_any()
    except CacheSvcError as error:
        return Check("fail", "name", error.message, error.hint)
    refused = offer.refused
    accepted = len(offer.answer.revisions) - len(refused)
    text = f"{name}: {accepted} fit here, {len(offer.answer.rejected)} do not"
    if not refused:
        return Check("ok", "name", text)
    first = next(iter(refused.values()))
    return Check("warn", "name", f"{text}, {len(refused)} are refused: {first.message}", first.hint)
