"""Find what signs for this process: a key file, or a program of the user's (``CACHESVC_SIGNER``).

The program lets a key service, a hardware token or an agent sign, so that no private key is on this machine.
As ``PROGRAM ARGUMENT… public-key`` it prints the public key. As ``PROGRAM ARGUMENT… sign`` it reads the bytes
to sign from its standard input, and prints their signature in base64. Both answers are one line. A signature
counts only if the public key verifies it.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from ..bundle.seal import PublicKey, Signer, SigningKey, strict_base64
from ..wire.errors import InvalidRequest, StorageFull, Unavailable, Untrusted

if TYPE_CHECKING:
    from ..config.settings import Config

ANSWER_SECONDS = 30.0
"""Seconds within which the program must end."""
MAX_ANSWER_BYTES = 4096
"""Largest number of bytes that are read of what the program prints."""
_SIGNATURE_BYTES = 64
"""Number of bytes of an Ed25519 signature."""
_MAX_SHOWN = 200
"""Largest number of characters of the program's output in a message."""

Order = Literal["public-key", "sign"]
"""The last word of a call: what the program is to do."""


def signer_of(config: Config) -> Signer | None:
    """Return what signs by this configuration; ``None`` if it names no program, no variable and no key file.

    Raise ``InvalidRequest`` for a file, a variable or a program that cannot be used, ``Unavailable`` and
    ``Untrusted`` as `ProgramSigner.start` does.
    """
    if config.signer:
        return ProgramSigner.start(config.signer)
    if config.signing_key_env:
        text = os.environ.get(config.signing_key_env, "")
        if not text.strip():
            raise InvalidRequest(
                f"CACHESVC_SIGNING_KEY: the variable {config.signing_key_env[:60]!r} is not set",
                "set it to what keygen wrote",
            )
        return SigningKey.from_text(text, config.signing_key_env[:60])
    return SigningKey.load(config.signing_key) if config.signing_key is not None else None


def demand_signer(config: Config, problem: str) -> Signer:
    """Return what signs by this configuration. Raise ``InvalidRequest`` that begins with ``problem`` if
    nothing does, and what `signer_of` raises."""
    signer = signer_of(config)
    if signer is None:
        raise InvalidRequest(
            problem, "cachesvc login URL --signing-key FILE, or set CACHESVC_SIGNING_KEY or CACHESVC_SIGNER"
        )
    return signer


class ProgramSigner(Signer):
    """Has a program sign. ``words``: the program and its arguments. ``public``: the key that it signs for."""

    __slots__ = ("_public", "_words")

    def __init__(self, words: Sequence[str], public: PublicKey) -> None:
        self._words, self._public = tuple(words), public

    def __repr__(self) -> str:
        return f"ProgramSigner({self._public})"

    @classmethod
    def start(cls, words: Sequence[str]) -> ProgramSigner:
        """Ask the program for its public key. Raise as `sign_message` does."""
        answer = _run(words, "public-key", b"")
        try:
            return cls(words, PublicKey(answer))
        except ValueError:
            raise Untrusted(
                f"{_call(words, 'public-key')}: it printed {answer[:_MAX_SHOWN]!r}, which is no public key",
                "it must print ed25519:<base64 of 32 bytes> and nothing else",
            ) from None

    @property
    def public(self) -> PublicKey:
        """Return the public key that the program named first."""
        return self._public

    def sign_message(self, message: bytes) -> bytes:
        """Return the program's signature of ``message``, after the public key has verified it.

        Raise ``InvalidRequest`` if the program cannot be started, ``Unavailable`` if it fails or takes too
        long, ``Untrusted`` if it prints anything else than a signature of these bytes by this key.
        """
        answer = _run(self._words, "sign", message)
        try:
            signature = strict_base64(answer)
        except ValueError:
            signature = b""
        if len(signature) != _SIGNATURE_BYTES:
            raise Untrusted(
                f"{_call(self._words, 'sign')}: it printed no Ed25519 signature",
                f"it must print the base64 of {_SIGNATURE_BYTES} bytes and nothing else",
            )
        if not self._public.verifies(signature, message):
            raise Untrusted(
                f"{_call(self._words, 'sign')}: not a signature of these bytes by key {self._public.short}",
                "it must sign the bytes themselves, not their hash, with the key that public-key prints",
            )
        return signature


def _call(words: Sequence[str], order: Order) -> str:
    """Return how messages name a call. Arguments are left out: a user may have put a secret there."""
    return f"signer {words[0][:_MAX_SHOWN]} ({order})"


def _run(words: Sequence[str], order: Order, message: bytes) -> str:
    """Return the line that the program prints for an order; ``message`` is its standard input."""
    what = _call(words, order)
    try:
        with tempfile.TemporaryFile() as stdin:
            stdin.write(message)
            stdin.seek(0)
            process = subprocess.Popen(
                [*words, order],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_variables(),
                start_new_session=True,
            )
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise InvalidRequest(f"{what}: cannot be started: {error.strerror}", "see CACHESVC_SIGNER") from None
    except OSError as error:
        raise StorageFull(f"{what}: cannot be started: {error.strerror or error}") from None
    try:
        answer, problem = _read(process, what)
    finally:
        _end(process)
    if process.returncode:
        raise Unavailable(f"{what}: it ended with {_status_text(process.returncode)}{problem}")
    try:
        return answer.decode("ascii").removesuffix("\n")
    except UnicodeDecodeError:
        raise Untrusted(f"{what}: it printed bytes that are no text", "it must print one line") from None


def _variables() -> dict[str, str]:
    """Return the variables that the program gets: all but those of cachesvc, of which some are secrets of the
    registry, and others would attach a program in Python to a name."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CACHESVC_")}


def _read(process: subprocess.Popen[bytes], what: str) -> tuple[bytes, str]:
    """Return what the program printed until it ended, and the first line of its errors.

    Raise ``Unavailable`` if it takes too long, ``Untrusted`` if it prints too much. Errors beyond the first
    bytes are read and thrown away.
    """
    end = time.monotonic() + ANSWER_SECONDS
    answer, problem = bytearray(), bytearray()
    late = Unavailable(f"{what}: it did not end within {ANSWER_SECONDS:.0f} s")
    with selectors.DefaultSelector() as selector:
        for pipe, kept in ((process.stdout, answer), (process.stderr, problem)):
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ, kept)
        while selector.get_map():
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready or time.monotonic() > end:
                raise late
            for key, _ in ready:
                chunk = os.read(key.fd, MAX_ANSWER_BYTES + 1)
                if not chunk:
                    selector.unregister(key.fileobj)
                key.data.extend(chunk[: MAX_ANSWER_BYTES + 1 - len(key.data)])
            if len(answer) > MAX_ANSWER_BYTES:
                raise Untrusted(f"{what}: it printed more than {MAX_ANSWER_BYTES} bytes")
    try:
        process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise late from None
    return bytes(answer), _first_line(bytes(problem))


def _first_line(data: bytes) -> str:
    lines = [line.strip() for line in data.decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[0][:_MAX_SHOWN]}" if lines else ""


def _status_text(status: int) -> str:
    return f"status {status}" if status > 0 else f"signal {-status}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes; kill the program and what it started, if it still runs."""
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
