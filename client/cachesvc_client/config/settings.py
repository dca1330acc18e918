"""Reads the configuration of this process: ``CACHESVC_*`` variables over the user's login file.

A process without a home is normal: containers use the variables.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..bundle.seal import TrustedKey
from ..environment.level_choice import parse_levels
from ..environment.variables import (
    NO_CANARY,
    CanarySetting,
    Mode,
    WaitPolicy,
    canary_setting,
    parse_mode,
    parse_switch,
    parse_wait,
)
from ..http.origin import Network, parse_networks, without_secrets
from ..wire.durations import MAX_OFFLINE_SECONDS, parse_duration
from ..wire.errors import InvalidRequest
from ..wire.manifest.requirement import Requirement
from ..wire.names import Lane, Name, Tag
from ..wire.sizes import parse_size
from .login import Login, RegistryLogin, parse_token
from .urls import registry_url

if TYPE_CHECKING:
    from ..bundle.check import Policy
    from ..trust.accept import Acceptance

T = TypeVar("T")
DEFAULT_DEADLINE = 10.0
"""Seconds that a compile waits for a restore, at most."""
MAX_DEADLINE = 3600.0
"""Largest number of seconds that a user may set as the deadline."""
DEFAULT_RECORD_SECONDS = 30.0
"""Seconds that a service may spend on recording beside its work."""
DEFAULT_PUBLISH_AFTER = 10.0
"""Seconds without a compile after which a process in mode readwrite publishes what it compiled."""
DEFAULT_NODE_AGE = 60.0
"""Seconds for which a list of this node's agent is used without a question to the registry."""
DEFAULT_OFFLINE = 7 * 86400.0
"""Seconds for which the last answer of a registry that cannot be reached is used."""


@dataclass(frozen=True, slots=True)
class Config:
    """Holds the configuration of a process, which is read once. ``deadline``: seconds. ``store``: folder of
    the node store, if the user named one. ``store_bytes``: the bound of its packs, if the user set one.

    ``bundle``: a bundle file, or a folder of them, instead of a registry. ``tag_fallback``: tags that are
    tried after a name's own tag, in order. ``report``: whether outcomes are reported to the registry.
    ``frames``: whether restored frames are given to Dynamo, which then does not trace. ``march``: levels, see
    `level_choice`. ``hold_collector``: see `process.gc_pause`. ``keep_own``: see `own_results`.
    ``record_seconds``: what a service may spend on recording beside its work. ``offline``: seconds for which
    the last answer of a registry that cannot be reached is used. ``max_age``: seconds since the
    signing of a revision, from which on it is refused; ``None``: the age that the root or a default says.
    ``require``: who must have built a revision; ``None`` accepts every builder. ``allow_links``: networks to
    which a registry's links may lead although they are not public. ``trust_root``: file of the pinned
    root of the registry's trust metadata; ``None`` if the trusted keys decide alone.
    ``signing_key_env``: variable that has the signing key, instead of a key file; empty without one.
    ``signer``: the program that signs, and its arguments, instead of both; empty without one.
    ``publish_after``: seconds, see `publication.as_you_go`.
    ``node_store``: the store that this node's agent fills, to read from; ``node_owner``: the user who may
    write there, beside this one and root; ``node_age``: seconds for which its lists are used without a
    question to the registry.
    ``wait``: ``compile`` takes no claim, and waits for no other process that compiles. ``eager`` runs calls
    without a compile as long as another process compiles.
    """

    url: str | None = None
    token: str | None = field(default=None, repr=False)
    names: tuple[Name, ...] = ()
    bundle: Path | None = None
    tag_fallback: tuple[Tag, ...] = ()
    lane: Lane | None = None
    mode: Mode = "read"
    wait: WaitPolicy = "wait"
    publish_after: float = DEFAULT_PUBLISH_AFTER
    deadline: float = DEFAULT_DEADLINE
    strict: bool = False
    trusted_keys: tuple[TrustedKey, ...] = ()
    trust_root: Path | None = None
    store: Path | None = None
    store_bytes: int | None = None
    node_store: Path | None = None
    node_owner: int | None = None
    node_age: float = DEFAULT_NODE_AGE
    signing_key: Path | None = None
    signing_key_env: str = ""
    signer: tuple[str, ...] = ()
    canary: CanarySetting = NO_CANARY
    report: bool = True
    frames: bool = True
    march: tuple[str, ...] = ()
    hold_collector: bool = True
    keep_own: bool = True
    record_seconds: float = DEFAULT_RECORD_SECONDS
    offline: float = DEFAULT_OFFLINE
    max_age: float | None = None
    require: Requirement | None = None
    allow_links: tuple[Network, ...] = ()

    def acceptance(self, policy: Policy | None = None) -> Acceptance:
        """Return which revisions count. ``policy``: decides by the pinned root, if there is one."""
        from ..trust.accept import Acceptance

        return Acceptance(self.trusted_keys, policy, self.max_age, self.require)

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Reads the configuration of this process.

        A variable that is set to nothing counts as not set. Token, keys and signing key of the login file
        count only for the registry that they were stored for. Raises ``InvalidRequest`` that names the
        variable or the file, and what is allowed.
        """
        environ = os.environ if environ is None else environ
        login = Login.read(environ)
        url = _variable(environ, "CACHESVC_URL", registry_url, login.default)
        stored = login.registries.get(url or "", RegistryLogin())
        signer: tuple[str, ...] = _variable(environ, "CACHESVC_SIGNER", _program, ())
        if signer and environ.get("CACHESVC_SIGNING_KEY", "").strip():
            raise InvalidRequest("CACHESVC_SIGNER and CACHESVC_SIGNING_KEY are both set", "unset one of them")
        signing_key = Path(stored.signing_key) if stored.signing_key and not signer else None
        trust_root = Path(stored.trust_root) if stored.trust_root else None
        return cls(
            url=url,
            token=_variable(environ, "CACHESVC_TOKEN", parse_token, stored.token),
            names=_variable(environ, "CACHESVC_NAME", _names, ()),
            bundle=_variable(environ, "CACHESVC_BUNDLE", _bundle, None),
            tag_fallback=_variable(environ, "CACHESVC_TAG_FALLBACK", _tags, ()),
            lane=_variable(environ, "CACHESVC_LANE", Lane, None),
            mode=_variable(environ, "CACHESVC_MODE", parse_mode, "read"),
            wait=_variable(environ, "CACHESVC_WAIT", parse_wait, "wait"),
            publish_after=_variable(environ, "CACHESVC_PUBLISH_AFTER", _seconds, DEFAULT_PUBLISH_AFTER),
            deadline=_variable(environ, "CACHESVC_DEADLINE", _seconds, DEFAULT_DEADLINE),
            strict=_variable(environ, "CACHESVC_STRICT", parse_switch, False),
            trusted_keys=_variable(environ, "CACHESVC_TRUSTED_KEYS", _keys, stored.trusted_keys),
            trust_root=_variable(environ, "CACHESVC_TRUST_ROOT", _path, trust_root),
            store=_variable(environ, "CACHESVC_STORE", _path, None),
            store_bytes=_variable(environ, "CACHESVC_STORE_BYTES", parse_size, None),
            node_store=_variable(environ, "CACHESVC_NODE_STORE", _path, None),
            node_owner=_variable(environ, "CACHESVC_NODE_OWNER", _user, None),
            node_age=_variable(environ, "CACHESVC_NODE_AGE", _offline, DEFAULT_NODE_AGE),
            signing_key=_variable(environ, "CACHESVC_SIGNING_KEY", _key_file, signing_key),
            signing_key_env=_variable(environ, "CACHESVC_SIGNING_KEY", key_variable, ""),
            signer=signer,
            canary=_variable(environ, "CACHESVC_CANARY", canary_setting, NO_CANARY),
            report=_variable(environ, "CACHESVC_REPORT", parse_switch, True),
            frames=_variable(environ, "CACHESVC_FRAMES", parse_switch, True),
            march=_variable(environ, "CACHESVC_MARCH", parse_levels, ()),
            hold_collector=_variable(environ, "CACHESVC_HOLD_COLLECTOR", parse_switch, True),
            keep_own=_variable(environ, "CACHESVC_KEEP_OWN", parse_switch, True),
            record_seconds=_variable(environ, "CACHESVC_RECORD_SECONDS", _seconds, DEFAULT_RECORD_SECONDS),
            offline=_variable(environ, "CACHESVC_OFFLINE", _offline, DEFAULT_OFFLINE),
            max_age=_variable(environ, "CACHESVC_MAX_AGE", parse_duration, None),
            require=_variable(environ, "CACHESVC_REQUIRE", Requirement.parse, None),
            allow_links=_variable(environ, "CACHESVC_ALLOW_LINKS", parse_networks, ()),
        )

    @property
    def can_sign(self) -> bool:
        """Return whether a key file, a variable or a program is named that signs."""
        return bool(self.signer or self.signing_key_env) or self.signing_key is not None


def _offline(text: str) -> float:
    seconds = parse_duration(text)
    if seconds > MAX_OFFLINE_SECONDS:
        raise ValueError(f"allowed: at most {MAX_OFFLINE_SECONDS // 86400}d")
    return seconds


def _user(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 11):
        raise ValueError("allowed: the number of a user, such as 10001")
    return int(text)


_MAY_BE_SECRET = ("CACHESVC_TOKEN", "CACHESVC_SIGNER", "CACHESVC_SIGNING_KEY")
"""Variables whose value no message shows."""


def _variable(environ: Mapping[str, str], name: str, parse: Callable[[str], T], default: T) -> T:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        return parse(text)
    except ValueError as error:
        secret = name in _MAY_BE_SECRET  # a private key may stand there by mistake
        shown_text = "" if secret else f" {without_secrets(text)[:120]!r}:"
        raise InvalidRequest(f"{name}:{shown_text} {error}") from None


def _names(text: str) -> tuple[Name, ...]:
    return tuple(Name.parse(part.strip()) for part in text.split(","))


def _tags(text: str) -> tuple[Tag, ...]:
    return tuple(Tag(part.strip()) for part in text.split(","))


def _keys(text: str) -> tuple[TrustedKey, ...]:
    return tuple(TrustedKey(part) for part in text.replace(",", " ").split())


def _program(text: str) -> tuple[str, ...]:
    import shlex

    door, _, command = text.partition(":")
    try:
        words = tuple(shlex.split(command)) if door == "cmd" else ()
    except ValueError as error:
        raise ValueError(f"{error}; allowed: cmd:PROGRAM ARGUMENT…, with the quotes of a shell") from None
    if not words or not words[0]:
        raise ValueError("allowed: cmd:PROGRAM ARGUMENT…")
    return words


def key_variable(text: str) -> str:
    """Return the name of the variable that ``env:NAME`` names; nothing for another text."""
    return text.removeprefix("env:").strip() if text.startswith("env:") else ""


def _key_file(text: str) -> Path | None:
    return None if key_variable(text) else _path(text, "an absolute path, or env:NAME")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_DEADLINE:  # false for nan
        raise ValueError(f"allowed: seconds, 0 to {MAX_DEADLINE:.0f}")
    return value


def _bundle(text: str) -> Path:
    return _path(text if text.startswith("~/") else os.path.abspath(text))


def _path(text: str, allowed: str = "an absolute path") -> Path:
    if not text.startswith(("/", "~/")) or "\0" in text:
        raise ValueError(f"allowed: {allowed}")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("there is no home folder to expand ~ with") from None
