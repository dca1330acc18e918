"""Owns what a restore asks for, `NameRequest`, and what it has got of that, `Coverage`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..wire.digest import Digest
from ..wire.errors import InvalidRequest
from ..wire.factors import Fingerprint
from ..wire.names import Lane, Name, Tag
from ..wire.requests.protocol import ResolveRequest


@dataclass(frozen=True, slots=True)
class NameRequest:
    """Asks for a name, with the tags to fall back to and the model whose entries come first."""

    name: Name
    fallback: tuple[Tag, ...] = ()
    lane: Lane | None = None
    model: Digest | None = None

    @property
    def tags(self) -> tuple[Tag, ...]:
        """Return the name's own tag and then the fallback tags, each once."""
        return tuple(dict.fromkeys((self.name.tag, *self.fallback)))

    def of_tag(self, tag: Tag | None) -> NameRequest:
        """Return the same request for the one tag that an answer is of; ``None``: for each tag."""
        if tag not in self.tags:
            return self
        return replace(self, name=replace(self.name, tag=tag), fallback=())

    def request(
        self,
        fingerprint: Fingerprint,
        *,
        limit: int | None = None,
        entries: tuple[Digest, ...] = (),
        keys: tuple[str, ...] | None = None,
    ) -> ResolveRequest:
        """Return the request that asks a registry for this name; `ResolveRequest` explains the options.
        Raise ``InvalidRequest`` for a fingerprint that no registry takes."""
        try:
            return ResolveRequest(
                namespace=self.name.namespace,
                name=self.name.name,
                fingerprint=fingerprint,
                tags=self.tags,
                lane=self.lane,
                model=self.model,
                entries=entries,
                most=limit,
                keys=keys,
            )
        except ValueError as error:
            raise InvalidRequest(str(error), "cachesvc-client doctor shows what was detected") from None


class CompleteAnswer(NamedTuple):
    """Says that an answer had all that fits under a name, or that there is nothing. ``request``: of the tag
    that answered. ``at``: since when its answer is in use, in seconds of ``time.monotonic``; before all time
    if entries of older models may be asked for at once."""

    request: NameRequest
    at: float


class Coverage:
    """Notes of which names a restore has left revisions out, and of which it has everything that fits.

    ``truncated``: the names of which revisions were left out, with the tag that answered. ``complete``: by
    name, the answer that left nothing out, but for older models; also where nothing is published. ``older``:
    whether an answer omitted entries of older models.
    """

    def __init__(self) -> None:
        self.truncated: list[NameRequest] = []
        self.complete: dict[NameRequest, CompleteAnswer] = {}
        self.older = False

    def note_truncated(self, request: NameRequest, tag: Tag | None) -> None:
        """Note that the answer of ``tag`` does not have all that fits."""
        self.truncated.append(request.of_tag(tag))

    def note_complete(self, request: NameRequest, tag: Tag | None, *, older: bool = False) -> None:
        """Note that the answer of ``tag`` has all that fits now, ``None``: that nothing is published.
        ``older``: all but what older models have, which may be asked for at once."""
        self.older |= older
        at = float("-inf") if older else time.monotonic()
        self.complete[request] = CompleteAnswer(request.of_tag(tag), at)
