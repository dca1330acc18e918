"""Decide whose signatures count for a revision, by the delegations of the targets metadata.

The path of a revision is ``namespace/trunk/name/tag``, or ``namespace/lane/LANE/name/tag``. A name's ``/`` is
written ``:``, so that every path has the same number of parts and ``*`` stands for any name.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from fnmatch import fnmatchcase

from ..bundle.seal import PublicKey
from ..wire.compare import made_with
from ..wire.errors import Untrusted
from ..wire.manifest.records import Manifest, Statement
from ..wire.names import Namespace
from .metadata import Delegation, Revocation, Targets


def target_path(statement: Statement) -> str:
    """Return the path under which delegations decide about a revision."""
    lane = "trunk" if statement.lane is None else f"lane/{statement.lane}"
    return f"{statement.namespace}/{lane}/{statement.name.replace('/', ':')}/{statement.tag}"


def fits(path: str, pattern: str) -> bool:
    """Return whether a path fits a delegation's pattern; ``*`` and ``?`` do not fit ``/``."""
    parts, patterns = path.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


class SignerPolicy:
    """Decide by the verified targets of a registry. ``where``: the registry, for messages."""

    def __init__(self, targets: Targets, where: str) -> None:
        self._targets, self._where = targets, where

    @property
    def keys(self) -> tuple[PublicKey, ...]:
        """List every key that a role names or that is revoked: the ones whose signatures are worth
        checking."""
        keys = [key for delegation in self._targets.delegations for key in self._signers(delegation)]
        return tuple(dict.fromkeys((*keys, *(revoked.key for revoked in self._targets.revoked))))

    def check(self, statement: Statement, signers: Collection[PublicKey]) -> PublicKey:
        """Return one of the ``signers`` of a revision that the delegations name for it.

        ``signers``: keys whose signatures over the revision were verified. Raise ``Untrusted`` if they are
        too few.
        """
        path = target_path(statement)
        needed: list[str] = []
        for delegation in self._roles_of(path):
            counted = [
                key
                for key in self._signers(delegation)
                if key in signers and self._revocation(key, statement.namespace) is None
            ]
            if len(counted) >= delegation.role.threshold:
                return counted[0]
            needed.append(
                f"{delegation.role.threshold} of {len(delegation.role.keyids)} ({delegation.name[:60]})"
            )
        raise self._refusal(statement, path, signers, needed)

    def counts(self, key: str, statement: Statement) -> bool:
        """Return whether a role names a key for the statement, and the key is not revoked there."""
        roles = self._roles_of(target_path(statement))
        named = any(key in self._signers(delegation) for delegation in roles)
        return named and self._revocation(key, statement.namespace) is None

    def max_age(self, namespace: Namespace) -> int | None:
        """Return for how many seconds after its signature a revision of a namespace counts; ``None`` if the
        targets do not say."""
        ages = self._targets.ages
        return ages.get(namespace, ages.get("*"))

    def check_ancestors(self, manifest: Manifest) -> None:
        """Raise ``Untrusted`` if a key that was revoked, where the revision or its ancestor is published, has
        signed an ancestor."""
        statement = manifest.statement
        for ancestor in (manifest.ancestors or ()) if self._targets.revoked else ():
            revocation = self._revocation(ancestor.signer, ancestor.namespace, statement.namespace)
            if revocation is not None:
                text = f"{made_with(ancestor.revision)}, {self._revoked_text(revocation)}"
                hint = "publish another: cachesvc warm --force"
                raise Untrusted(f"{statement.full_name}: {text}", hint)

    def _roles_of(self, path: str) -> list[Delegation]:
        """List the roles that decide about a path, in order; none follows a terminating one."""
        roles: list[Delegation] = []
        for delegation in self._targets.delegations:
            if any(fits(path, pattern) for pattern in delegation.paths):
                roles.append(delegation)
                if delegation.terminating:
                    break
        return roles

    def _signers(self, delegation: Delegation) -> list[PublicKey]:
        """List the different keys of a role that can sign revisions, revoked ones too."""
        keys = [self._targets.keys[keyid] for keyid in delegation.role.keyids if keyid in self._targets.keys]
        return list(dict.fromkeys(key.signer for key in keys if key.signer is not None))

    def _revocation(self, key: str, *namespaces: Namespace) -> Revocation | None:
        """Return the revocation that refuses a key in one of the namespaces; ``None`` if there is none."""
        here = (None, *namespaces)
        revoked = [one for one in self._targets.revoked if one.key == key and one.namespace in here]
        return max(revoked, key=lambda one: bool(one.reason)) if revoked else None

    def _revoked_text(self, revocation: Revocation) -> str:
        day = time.strftime("%Y-%m-%d", time.gmtime(revocation.at))
        reason = f": {revocation.reason[:120]}" if revocation.reason else ""
        return f"signed by key {revocation.key.short}, which {self._where} revoked on {day}{reason}"

    def _refusal(
        self, statement: Statement, path: str, signers: Collection[PublicKey], needed: list[str]
    ) -> Untrusted:
        name = f"{statement.full_name}" + (f" (lane {statement.lane})" if statement.lane else "")
        for key in signers:
            if (revocation := self._revocation(key, statement.namespace)) is not None:
                text = f"{name}: {self._revoked_text(revocation)}"
                return Untrusted(text, "publish again with another key")
        if not needed:
            return Untrusted(
                f"{name}: {self._where} delegates {path} to nobody",
                "cachesvc admin signers add names one",
            )
        signed = ", ".join(sorted(key.keyid for key in signers)) or "no key that it names"
        return Untrusted(
            f"{name}: signed by {signed}; {self._where} demands {' or '.join(needed)}",
            "cachesvc admin signers list shows the signers of each namespace",
        )
