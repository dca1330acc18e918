"""Reads the configuration of this process: ``CACHESVC_*`` variables over the user's login file.

The login file is ``$XDG_CONFIG_HOME/cachesvc/login.json`` (else ``~/.config``), mode 0600. It names the
default registry, and holds for each registry a token, trusted keys and the path of a signing key. A process
without a home is normal: containers use the variables.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .bundle.seal import SigningKey, TrustedKey
from .environment.variables import (
    NO_CANARY,
    CanarySetting,
    Mode,
    WaitPolicy,
    canary_setting,
    parse_mode,
    parse_switch,
    parse_wait,
)
from .http.origin import Network, parse_networks, without_secrets
from .wire.codec import build, canonical, parse_json
from .wire.durations import MAX_OFFLINE_SECONDS, parse_duration
from .wire.errors import InvalidRequest, StorageFull
from .wire.names import Lane, Name, Tag
from .wire.requirement import Requirement
from .wire.sizes import parse_size

if TYPE_CHECKING:
    from .bundle.check import Policy
    from .http.registry import Probe
    from .trust.accept import Acceptance
    from .trust_root.pin import Pin

T = TypeVar("T")

LOGIN_FORMAT = "cachesvc.login/1"
"""Format of the login file that this client writes and reads."""
DEFAULT_DEADLINE = 10.0
"""Seconds that a compile waits for a restore, at most."""
MAX_DEADLINE = 3600.0
"""Largest number of seconds that a user may set as the deadline."""
DEFAULT_PUBLISH_AFTER = 10.0
"""Seconds without a compile after which a process in mode readwrite publishes what it compiled."""
DEFAULT_NODE_AGE = 60.0
"""Seconds for which a list of this node's agent is used without a question to the registry."""
DEFAULT_OFFLINE = 7 * 86400.0
"""Seconds for which the last answer of a registry that cannot be reached is used."""
_MAX_LOGIN_BYTES = 1 << 20
"""Largest number of bytes of a login file."""
_URL = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>(?:/[A-Za-z0-9._~%-]+)*)/*"
)
"""Matches the URL of a registry."""
_TOKEN = re.compile(r"[\x21-\x7e]{1,512}")
"""Matches a token."""


@dataclass(frozen=True, slots=True)
class Config:
    """Holds the configuration of a process, which is read once. ``deadline``: seconds. ``store``: folder of
    the node store, if the user named one. ``store_bytes``: the bound of its packs, if the user set one.

    ``bundle``: a bundle file, or a folder of them, instead of a registry. ``tag_fallback``: tags that are
    tried after a name's own tag, in order. ``report``: whether outcomes are reported to the registry.
    ``frames``: whether restored frames are given to Dynamo, which then does not trace. ``hold_collector``:
    see `process.gc_pause`. ``keep_own``: see `own_results`. ``offline``: seconds for which the last answer of
    a registry that cannot be reached is used. ``max_age``: seconds since the signing of a revision, from
    which on it is refused; ``None``: the age that the root or a default says. ``require``: who must have
    built a revision; ``None`` accepts every builder. ``allow_links``: networks to which a registry's links
    may lead although they are not public. ``trust_root``: file of the pinned root of the registry's trust
    metadata; ``None`` if the trusted keys decide alone. ``signing_key_env``: variable that has the signing
    key, instead of a key file; empty without one. ``signer``: the program that signs, and its arguments,
    instead of both; empty without one. ``publish_after``: seconds, see `publication.as_you_go`.
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
    hold_collector: bool = True
    keep_own: bool = True
    offline: float = DEFAULT_OFFLINE
    max_age: float | None = None
    require: Requirement | None = None
    allow_links: tuple[Network, ...] = ()

    def acceptance(self, policy: Policy | None = None) -> Acceptance:
        """Return which revisions count. ``policy``: decides by the pinned root, if there is one."""
        from .trust.accept import Acceptance

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
            token=_variable(environ, "CACHESVC_TOKEN", _token, stored.token),
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
            hold_collector=_variable(environ, "CACHESVC_HOLD_COLLECTOR", parse_switch, True),
            keep_own=_variable(environ, "CACHESVC_KEEP_OWN", parse_switch, True),
            offline=_variable(environ, "CACHESVC_OFFLINE", _offline, DEFAULT_OFFLINE),
            max_age=_variable(environ, "CACHESVC_MAX_AGE", parse_duration, None),
            require=_variable(environ, "CACHESVC_REQUIRE", Requirement.parse, None),
            allow_links=_variable(environ, "CACHESVC_ALLOW_LINKS", parse_networks, ()),
        )

    @property
    def can_sign(self) -> bool:
        """Return whether a key file, a variable or a program is named that signs."""
        return bool(self.signer or self.signing_key_env) or self.signing_key is not None


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """Holds what a user stored for one registry."""

    token: str | None = field(default=None, repr=False)
    trusted_keys: tuple[TrustedKey, ...] = ()
    signing_key: str | None = None
    trust_root: str | None = None

    def __post_init__(self) -> None:
        if self.token is not None:
            _token(self.token)
        if self.signing_key is not None and not self.signing_key.isprintable():
            raise ValueError("signing_key: not a printable path")
        if self.trust_root is not None and not self.trust_root.isprintable():
            raise ValueError("trust_root: not a printable path")


@dataclass(frozen=True, slots=True)
class Login:
    """Holds the content of the login file. ``registries``: by URL, as ``registry_url`` writes it."""

    registries: dict[str, RegistryLogin] = field(default_factory=dict)
    default: str | None = None
    format: str = LOGIN_FORMAT

    def __post_init__(self) -> None:
        if self.format != LOGIN_FORMAT:
            raise ValueError(f"format {self.format[:60]!r}: this client reads {LOGIN_FORMAT}")
        if self.default is not None:
            registry_url(self.default)

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Login:
        """Reads the login file; returns an empty one if there is no file or no home.

        Raises ``InvalidRequest`` if the file is malformed, or if its mode gives other users any right: the
        file says whom to trust, and holds tokens.
        """
        path = login_path(environ)
        try:
            if path is None:
                return cls()
            with open(path, "rb") as file:
                facts = os.fstat(file.fileno())
                data = file.read(_MAX_LOGIN_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return cls()
        except OSError as error:
            raise InvalidRequest(f"{path}: {error.strerror}") from None
        if facts.st_uid not in (0, os.getuid()):
            raise InvalidRequest(f"{path}: it belongs to user {facts.st_uid}", "remove it and log in again")
        if facts.st_mode & 0o077:
            raise InvalidRequest(
                f"{path}: others may read or write it (mode {facts.st_mode & 0o777:03o})",
                f"chmod 600 {path}, and check what it holds",
            )
        try:
            return build(cls, parse_json(data, limit=_MAX_LOGIN_BYTES, what="login"))
        except ValueError as error:
            raise InvalidRequest(f"{path}: {error}", "remove it and run cachesvc login") from None

    def write(self, environ: Mapping[str, str] | None = None) -> Path:
        """Replaces the login file, whole or not at all; mode 0600. Raises ``InvalidRequest`` without a home,
        ``StorageFull`` if it cannot be written."""
        import tempfile

        path = login_path(environ)
        if path is None:
            raise InvalidRequest("no home folder to store a login in", "set CACHESVC_URL and CACHESVC_TOKEN")
        text = json.dumps(json.loads(canonical(self)), indent=1, sort_keys=True) + "\n"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".login-")  # 0600
            try:
                with os.fdopen(handle, "w") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            raise StorageFull(f"{path}: cannot be written: {error.strerror}") from None
        return path


def login_path(environ: Mapping[str, str] | None = None) -> Path | None:
    """Returns ``$XDG_CONFIG_HOME/cachesvc/login.json``, else the path under ``~/.config``; ``None`` without a
    home."""
    environ = os.environ if environ is None else environ
    config_home = environ.get("XDG_CONFIG_HOME", "")
    if config_home.startswith("/"):  # the XDG specification ignores relative ones
        return Path(config_home, "cachesvc", "login.json")
    home = environ.get("HOME", "")
    return Path(home, ".config", "cachesvc", "login.json") if home.startswith("/") else None


def login(
    url: str,
    token: str | None,
    trust: tuple[str, ...] = (),
    signing_key: Path | None = None,
    environ: Mapping[str, str] | None = None,
    root: Path | None = None,
    new_root: bool = False,
) -> tuple[Path, Probe, Pin | None]:
    """Stores a registry for this user and makes it the default, after the registry has confirmed the token.

    Keeps the keys and the signing key that the user does not name again. Pins ``root``, or else the root that
    the registry gives, unless one is pinned; ``new_root`` pins it in place of that one. Returns the file that
    was written, the registry's answers, and the root if it was pinned now. Raises ``InvalidRequest`` for
    malformed arguments, ``Untrusted`` for a registry that does not follow from the root that is pinned for
    it, and what ``Remote`` raises if the registry cannot be reached, is none, or does not know the token;
    then nothing is stored.
    """
    from .http.registry import Remote
    from .trust_root.pin import check_pin, pin_root

    url = _argument("URL", registry_url, url)
    token = _argument("--token", _token, token) if token else None
    keys = tuple(_argument("--trust", TrustedKey, key) for key in trust)
    if signing_key is not None:
        signing_key = signing_key.expanduser().absolute()
        SigningKey.load(signing_key)
    file = Login.read(environ)
    stored = file.registries.get(url, RegistryLogin())
    home = login_path(environ)
    with Remote(url, token) as remote:
        probe = remote.probe()
        pin, pinned = None, None if new_root else stored.trust_root
        if home is not None and probe.whoami is not None:
            if root is None and pinned is not None and Path(pinned).exists():
                check_pin(remote, Path(pinned))
            else:
                pin = pin_root(remote, root, home.parent / "roots")
    entry = RegistryLogin(
        token=token or stored.token,
        trusted_keys=keys or stored.trusted_keys,
        signing_key=str(signing_key) if signing_key else stored.signing_key,
        trust_root=str(pin.path) if pin is not None else pinned,
    )
    path = replace(file, registries={**file.registries, url: entry}, default=url).write(environ)
    return path, probe, pin


def registry_url(text: str) -> str:
    """Returns ``http(s)://host[:port][/prefix]`` in one spelling: lower case, without a slash at the end.

    Raises ``ValueError`` with what is allowed.
    """
    match = _URL.fullmatch(text)
    if match is None or int(match["port"] or 0) > 65535:
        raise ValueError(_wrong_url(text))
    for end in ("/v1", "/ui"):
        if match["path"].endswith(end):
            raise ValueError(f"leave {end} out: {'clients add it' if end == '/v1' else 'it is the web page'}")
    scheme, host, port = match["scheme"], match["host"].lower(), match["port"]
    standard = {"http": "80", "https": "443"}[scheme]
    return f"{scheme}://{host}{f':{port}' if port and port != standard else ''}{match['path']}"


def _wrong_url(text: str) -> str:
    """Return what is wrong with a text that is no URL of a registry, and what is allowed."""
    if re.search(r":[0-9]{5,}(?:/|$)", text) and text.startswith(("http://", "https://")):
        return "a port is at most 65535"
    if "://" not in text and _URL.fullmatch(f"https://{text}") and re.match(r"localhost|[^/]*[.:]", text):
        host = text.partition(":")[0].partition("/")[0]
        scheme = "http" if host in ("localhost", "127.0.0.1") else "https"
        return f"it begins with http:// or https://: did you mean {scheme}://{text}?"
    return "allowed: http(s)://host[:port][/prefix], without user, query or fragment"


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


def _argument(name: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}") from None


def _token(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise ValueError("allowed: at most 512 printable characters without spaces")
    return text


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
