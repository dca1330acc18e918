"""Defines every error that cachesvc raises on purpose.

The type decides the HTTP status, the code on the wire, whether a client tries again, and the exit status of a
command. ``message`` says what failed and where; ``hint`` says how to fix it.
"""

from __future__ import annotations

from typing import ClassVar


def printable(text: str) -> str:
    """Replaces line ends, escape sequences and other characters that are not printable: parts of a message
    come from registries, and the message goes to terminals and into logs."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


class CacheSvcError(Exception):
    """Describes any error of cachesvc. ``str(error)`` is one printable line."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    retry: ClassVar[bool] = False
    exit_status: ClassVar[int] = 1
    quiet: ClassVar[bool] = False
    """Whether a service that goes on without the cache says so at info, as nothing of its own is wrong."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = printable(message)
        self.hint = printable(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidRequest(CacheSvcError):
    """Reports a value that cannot be parsed, or that contradicts another."""

    status, code, exit_status = 422, "invalid", 2


class SpecError(InvalidRequest):
    """Reports a warm spec that is malformed: names file, line or key, and what is allowed."""

    code = "spec"


class Unauthenticated(CacheSvcError):
    """Reports that the token is missing, expired, or not known to the registry."""

    status, code, exit_status = 401, "unauthenticated", 3


class Forbidden(CacheSvcError):
    """Reports a known token that may not do this."""

    status, code, exit_status = 403, "forbidden", 3


class NotFound(CacheSvcError):
    """Reports a name, entry, revision or upload that does not exist (or that the token may not see)."""

    status, code, exit_status = 404, "not_found", 4


class HeadConflict(CacheSvcError):
    """Reports a publication that names another head than the entry has: someone else published first."""

    status, code, exit_status = 409, "head_conflict", 5


class LeaseLost(CacheSvcError):
    """Reports that the upload's lease is over; its bytes may be gone. Begin the upload again."""

    status, code, exit_status = 410, "lease_lost", 5


class ClaimLost(CacheSvcError):
    """Reports a claim that its holder has lost: the holder was silent for too long, and another may
    compile."""

    status, code, exit_status = 409, "claim_lost", 5


class TooLarge(CacheSvcError):
    """Reports that something is over a limit, which the message names."""

    status, code, exit_status = 413, "too_large", 2


class RangeInvalid(CacheSvcError):
    """Reports a byte range outside of the object."""

    status, code = 416, "range"


class TooMany(CacheSvcError):
    """Reports more requests of a kind than a token may send in a period, or at once. The client tries again
    where that is safe."""

    status, code, retry, exit_status = 429, "too_many", True, 6


class Unavailable(CacheSvcError):
    """Reports that the registry, or what it depends on, cannot be reached or is too slow. The client tries
    again."""

    status, code, retry, exit_status = 503, "unavailable", True, 6


class StorageFull(CacheSvcError):
    """Reports that the registry's or this machine's disk has no room."""

    status, code, exit_status = 507, "storage_full", 6


class ProtocolMismatch(CacheSvcError):
    """Reports that the other side speaks another version, or is not a cachesvc registry at all."""

    status, code, exit_status = 426, "protocol", 6


class Untrusted(CacheSvcError):
    """Reports a check that failed: digest, signature, signer, or what the signed statement says."""

    status, code, exit_status = 403, "untrusted", 7


class Corrupt(Untrusted):
    """Reports bytes that are not what their digest or their format promises."""

    status, code = 422, "corrupt"


class Distrusted(Untrusted):
    """Reports a revision that this node has withdrawn: its first output differed from eager, which is the
    canary's verdict, or two processes crashed while they loaded files of the revision."""

    code = "distrusted"


class Incompatible(CacheSvcError):
    """Reports that entries exist, but that none fits this environment; the message names the first factor."""

    status, code, exit_status = 404, "incompatible", 4


class Unsupported(CacheSvcError):
    """Reports a platform or a torch on which nothing can be restored or built."""

    code, exit_status = "unsupported", 8


class NotWarm(CacheSvcError):
    """Reports a target that is cold, does not settle, or whose numbers differ."""

    code, exit_status = "not_warm", 9


ALL: dict[str, type[CacheSvcError]] = {
    kind.code: kind
    for kind in tuple(globals().values())
    if isinstance(kind, type) and issubclass(kind, CacheSvcError)
}
"""Every error type of this module, by its code on the wire."""


def from_wire(status: int, body: object) -> CacheSvcError:
    """Returns the error that a registry's answer describes: ``{"error": {"code", "message", "hint"}}``.

    Never raises. An answer of another form becomes ``Unavailable`` (5xx, 408, 425, 429) or
    ``ProtocolMismatch``.
    """
    inner = body.get("error") if isinstance(body, dict) else None
    if isinstance(inner, dict) and isinstance(inner.get("code"), str):
        kind = ALL.get(inner["code"], CacheSvcError)
        return kind(str(inner.get("message", ""))[:500], str(inner.get("hint", ""))[:500])
    if status >= 500 or status in (408, 425, 429):
        return Unavailable(f"the registry answered with status {status}")
    return ProtocolMismatch(
        f"status {status}, and not in the form of a cachesvc registry", "check CACHESVC_URL"
    )


def to_wire(error: CacheSvcError) -> dict[str, dict[str, str]]:
    """Returns the body of an error answer; the inverse of :func:`from_wire`."""
    return {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
