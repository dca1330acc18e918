"""Keeps what a user stored for each registry, in the login file.

The file is ``$XDG_CONFIG_HOME/cachesvc/login.json`` (else ``~/.config``), mode 0600. It names the default
registry, and holds for each registry a token, trusted keys and the path of a signing key.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..bundle.seal import SigningKey, TrustedKey
from ..wire.codec import build, canonical, parse_json
from ..wire.errors import InvalidRequest, StorageFull
from .urls import registry_url

if TYPE_CHECKING:
    from ..http.registry import Probe
    from ..trust_root.pin import Pin

T = TypeVar("T")

LOGIN_FORMAT = "cachesvc.login/1"
"""Format of the login file that this client writes and reads."""
_MAX_LOGIN_BYTES = 1 << 20
"""Largest number of bytes of a login file."""
_TOKEN = re.compile(r"[\x21-\x7e]{1,512}")
"""Matches a token."""


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """Holds what a user stored for one registry."""

    token: str | None = field(default=None, repr=False)
    trusted_keys: tuple[TrustedKey, ...] = ()
    signing_key: str | None = None
    trust_root: str | None = None

    def __post_init__(self) -> None:
        if self.token is not None:
            parse_token(self.token)
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
    from ..http.registry import Remote
    from ..trust_root.pin import check_pin, pin_root

    url = _argument("URL", registry_url, url)
    token = _argument("--token", parse_token, token) if token else None
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


def _argument(name: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}") from None


def parse_token(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise ValueError("allowed: at most 512 printable characters without spaces")
    return text
