"""Owns `Offer`: what a registry offers under a name in an environment, and what this client accepts of it.

`explain` and `doctor` both judge the answer to the very request that a service sends, so they agree with its
log and its report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..bundle.check import ExpectedStatement
from ..config.settings import Config
from ..environment.support import check_proof
from ..http.registry import Remote
from ..kinds import is_recorded
from ..process.every_hook import support_of
from ..restore.accept import nothing_offered
from ..restore.request import NameRequest
from ..wire.digest import Digest
from ..wire.errors import CacheSvcError
from ..wire.factors import Facts, Fingerprint
from ..wire.manifest.records import Manifest
from ..wire.names import Name, Tag
from ..wire.requests.protocol import MAX_RESOLVED, ResolveAnswer
from .names import suggesting
from .trust import registry_policy, trusts_anybody


@dataclass(frozen=True, slots=True)
class Offer:
    """Holds what a service would get under a name.

    ``name``: with the tag that answered. ``facts``: by entry, the facts of the revisions that this client
    accepts. ``traced``: those of them with compiled graphs and without what Dynamo traced: their hits trace.
    ``refused``: by entry, why it does not accept the others. Where no key is trusted, all three are empty.
    """

    name: Name
    answer: ResolveAnswer
    facts: Mapping[Digest, Facts]
    refused: Mapping[Digest, CacheSvcError]
    traced: frozenset[Digest] = frozenset()

    def demand_any(self) -> None:
        """Raise the ``CacheSvcError`` of a service's log, if a service would install nothing."""
        if not self.answer.revisions:
            raise nothing_offered(self.name, self.answer.rejected)
        if len(self.refused) == len(self.answer.revisions):
            raise next(iter(self.refused.values()))


def ask_offer(
    remote: Remote,
    config: Config,
    name: Name,
    fallback: tuple[Tag, ...],
    environment: Facts,
    here: Fingerprint | None,
) -> Offer:
    """Ask a registry as a service in ``environment`` does.

    ``here``: the fingerprint of this environment; ``None`` to ask for another one, whose torch cannot be
    asked for proofs. Raises ``NotFound`` (no such name), ``Unavailable`` and what else ``Remote`` raises.
    """
    with suggesting(remote, name):
        request = NameRequest(name, fallback, config.lane).request(environment, limit=MAX_RESOLVED)
        answer = remote.resolve(request)
    chosen = Name(name.namespace, name.name, answer.tag or name.tag)
    facts: dict[Digest, Facts] = {}
    refused: dict[Digest, CacheSvcError] = {}
    traced: set[Digest] = set()
    if not trusts_anybody(config):
        return Offer(chosen, answer, facts, refused)
    acceptance = config.acceptance(registry_policy(config, remote))
    support = support_of(here) if here is not None else None
    expected = ExpectedStatement(chosen.namespace, chosen.name, (chosen.tag,), config.lane)
    for revision in answer.revisions:
        try:
            checked = acceptance.accept(revision.envelope_bytes, expected)
            if here is not None and support is not None:
                check_proof(checked.manifest, support, here)
            facts[revision.entry] = checked.manifest.facts
            if will_trace(checked.manifest):
                traced.add(revision.entry)
        except CacheSvcError as error:
            refused[revision.entry] = error
    return Offer(chosen, answer, facts, refused, frozenset(traced))


def will_trace(manifest: Manifest) -> bool:
    """Return whether a hit of a revision traces: it has compiled graphs, and nothing that Dynamo traced."""
    return bool(manifest.graph_keys) and not any(is_recorded(file.kind) for file in manifest.files)
