"""Parses the ``CACHESVC_*`` variables that are read both at start-up and by the configuration.

`config` refuses a malformed value and says what is allowed. Start-up code must not raise, so `is_switched_on`
and `is_mode_off` treat a malformed value as not set. This module imports almost nothing, because `attach`
pays for it on the application's own thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, cast

PREFIX = "CACHESVC_"
"""Beginning of the names of all variables of cachesvc."""
SERVER_PREFIX = PREFIX + "SERVER_"
"""Beginning of the names of a registry's settings, which a client does not read."""
KNOWN = frozenset(
    PREFIX + name
    for name in (
        *(
            "ALLOW_LINKS",
            "BUNDLE",
            "CANARY",
            "DEADLINE",
            "FRAMES",
            "FRAMES_DIR",
            "HOLD_COLLECTOR",
            "ID_TOKEN",
            "INIT_FOLDER",
        ),
        *(
            "KEEP_OWN",
            "RECORD_SECONDS",
            "KINDS",
            "LANE",
            "LOG",
            "MARCH",
            "MAX_AGE",
            "MODE",
            "NAME",
            "NODE_AGE",
            "NODE_OWNER",
            "NODE_STORE",
            "OBSERVE",
            "OFFLINE",
            "OIDC",
        ),
        *(
            "PUBLISH_AFTER",
            "REPORT",
            "REQUIRE",
            "SIGNER",
            "SIGNING_KEY",
            "STORE",
            "STORE_BYTES",
            "STRICT",
            "TAG_FALLBACK",
            "TOKEN",
            "TRUSTED_KEYS",
        ),
        *("TRUST_ROOT", "UNTESTED", "URL", "VLLM_DIR", "WAIT", "WARM_REQUEST"),
    )
)
"""Every variable that a client, or ``warm``, reads."""
_OF_OTHERS = re.compile(
    r"CACHESVC_(TEST_\w+|FUZZ)=.*"  # of this project's own tests
    r"|CACHESVC(_\w+)?_(SERVICE_(HOST|PORT(_\w+)?)|PORT_[0-9]+_(TCP|UDP|SCTP)(_\w+)?)=.*"
    r"|CACHESVC(_\w+)?_PORT=\w+://.*",
    re.DOTALL,
)
"""Matches ``NAME=VALUE`` of variables that others set. Kubernetes sets ``CACHESVC_SERVICE_HOST``,
``CACHESVC_PORT_80_TCP`` and the like in each pod beside a service of the name ``cachesvc``
(https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables)."""

Mode = Literal["read", "readwrite", "off"]
WaitPolicy = Literal["wait", "compile", "eager"]
"""What a process that may publish does while another one compiles the same: it waits, it compiles too, or it
runs its calls without a compile."""


class CanarySetting(NamedTuple):
    """Says in which starts restored code is compared with eager: 1 of ``one_of``, none for 0. ``beside``:
    beside the service, after the call; otherwise inside of the call."""

    one_of: int = 0
    beside: bool = False


NO_CANARY = CanarySetting()
DEFAULT_SAMPLE = 100
"""Of so many starts ``CACHESVC_CANARY=sample`` takes one."""
_SAMPLE = re.compile(r"sample(?::([1-9][0-9]{0,8}))?")

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")


def parse_switch(text: str) -> bool:
    """Return whether the text of a switch means on. Raises ``ValueError`` with what is allowed."""
    value = text.strip().lower()
    if value not in _ON + _OFF:
        raise ValueError("allowed: 1 or 0")
    return value in _ON


def parse_mode(text: str) -> Mode:
    """Return the mode that a text names. Raises ``ValueError`` with what is allowed."""
    value = text.strip()
    if value not in ("read", "readwrite", "off"):
        raise ValueError("allowed: read, readwrite, off")
    return cast(Mode, value)


def parse_wait(text: str) -> WaitPolicy:
    """Return the policy that a text names. Raises ``ValueError`` with what is allowed."""
    value = text.strip()
    if value not in ("wait", "compile", "eager"):
        raise ValueError("allowed: wait, compile, eager")
    return cast(WaitPolicy, value)


def parse_canary(text: str) -> CanarySetting:
    """Return in which starts a canary runs. Raises ``ValueError`` with what is allowed."""
    if match := _SAMPLE.fullmatch(text.strip().lower()):
        return CanarySetting(int(match[1] or DEFAULT_SAMPLE), beside=True)
    try:
        return CanarySetting(int(parse_switch(text)))
    except ValueError:
        raise ValueError("allowed: 0, 1, sample or sample:N, which is 1 of N starts") from None


def canary_setting(text: str) -> CanarySetting:
    """Return in which starts a canary runs: in none for a malformed text, which `obsolete_line` names."""
    try:
        return parse_canary(text)
    except ValueError:
        return NO_CANARY


def is_eager_policy() -> bool:
    """Return whether CACHESVC_WAIT asks for calls without a compile while another process compiles."""
    return os.environ.get("CACHESVC_WAIT", "").strip() == "eager"


def is_switched_on(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether the switch ``name``, which is off by default, is on. A malformed value counts as off."""
    try:
        return parse_switch((os.environ if environ is None else environ).get(name, ""))
    except ValueError:
        return False


def unknown_variables(
    known: Iterable[str], prefix: str = PREFIX, environ: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Return each variable that begins with ``prefix``, is set, and is none of ``known``, with a hint that
    names the nearest known one. A variable whose name another one gives (``env:NAME``) is known."""
    environ = os.environ if environ is None else environ
    known = {*known, environ.get("CACHESVC_SIGNING_KEY", "").removeprefix("env:")}
    unknown = [name for name in environ if name.startswith(prefix) and name not in known and environ[name]]
    ours = [name for name in unknown if not _OF_OTHERS.fullmatch(f"{name}={environ[name]}")]
    return [(name, _hint(name.removeprefix(prefix), known, prefix)) for name in ours]


def _hint(name: str, known: Iterable[str], prefix: str) -> str:
    from ..wire.suggestion import nearest

    near = nearest(name, (one.removeprefix(prefix) for one in known))  # the prefix alone makes all look alike
    return f"did you mean {prefix}{near}?" if near else "unset it"


def obsolete_line(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the line for a user who sets variables that do nothing: unknown ones, a malformed canary,
    and one that does nothing any more. ``None`` if there are none."""
    environ = os.environ if environ is None else environ
    parts = [
        f"{name} does nothing, since cachesvc has no such variable: {hint}"
        for name, hint in unknown_variables(KNOWN, environ=environ)
        if not name.startswith(SERVER_PREFIX)
    ]
    if canary := environ.get("CACHESVC_CANARY", "").strip():
        try:
            parse_canary(canary)
        except ValueError as error:
            parts.append(f"CACHESVC_CANARY={canary[:60]!r} does nothing, and no canary runs: {error}")
    if environ.get("CACHESVC_UNTESTED"):
        parts.append(
            "CACHESVC_UNTESTED does nothing any more: on a torch that is not among the tested releases, "
            "entries are used that cachesvc warm has proven on it; unset it"
        )
    return "; ".join(parts) or None


def is_mode_off(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether ``CACHESVC_MODE`` turns cachesvc off. A malformed value does not."""
    try:
        return parse_mode((os.environ if environ is None else environ).get("CACHESVC_MODE", "")) == "off"
    except ValueError:
        return False
