"""``cachesvc admin trust init``, ``rotate-root`` and ``rotate-online``: who holds the root of trust."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from cachesvc.console.output import Apply, AsJson, show_plan
from cachesvc.schema.access import SignerRecord
from cachesvc.schema.revocations import RevokedSigner
from cachesvc.schema.trust_changes import KeysRequest, TrustState
from cachesvc_client.bundle.seal import PublicKey, SigningKey, key_text
from cachesvc_client.queries.names import Connection
from cachesvc_client.trust_root.metadata import Revocation
from cachesvc_client.wire.errors import InvalidRequest

from ..connection import connect, connect_over_http
from .offline import (
    DraftFile,
    OutFolder,
    RoleKey,
    RootKeys,
    TargetsKeys,
    finish,
    now,
    present_files,
    present_root,
    private_keys,
    read_keys,
    rows_of_targets,
)
from .show import TRUST_COLUMNS, TrustRow, trust
from .state import no_metadata_hint, read_state

if TYPE_CHECKING:
    from cachesvc.tuf.draft import Draft

OldRootKeys = Annotated[
    list[str] | None,
    typer.Option("--old-root-key", help="Key file of the present root, which signs the next one; repeat it."),
]
Threshold = Annotated[int, typer.Option(min=1, help="How many keys of the root must sign the next root.")]
TargetsThreshold = Annotated[
    int, typer.Option("--targets-threshold", min=1, help="How many keys of the targets must sign.")
]


@dataclass(frozen=True, slots=True)
class NewKeys:
    """Holds the keys that the next root is to name, and the private ones of the present root."""

    root: Sequence[RoleKey]
    threshold: int
    targets: Sequence[RoleKey]
    targets_threshold: int
    old_root: Sequence[SigningKey]

    def check(self) -> None:
        """Raise ``InvalidRequest`` for thresholds that the keys cannot reach."""
        for name, keys, threshold in (
            ("root", self.root, self.threshold),
            ("targets", self.targets, self.targets_threshold),
        ):
            if threshold > len(keys):
                raise InvalidRequest(
                    f"{name}: {threshold} of {len(keys)} keys would have to sign",
                    f"name more keys with --{name}-key, or a lower threshold",
                )

    def rows(self, online: str) -> list[TrustRow]:
        """Return what the next root is to say, also of key files that do not exist yet."""
        rows = [
            TrustRow("root", (), _labels(self.root), self.threshold),
            TrustRow("targets", (), _labels(self.targets), self.targets_threshold),
        ]
        return [*rows, TrustRow("snapshot, timestamp", (), (f"the registry's {key_text(online)}",), 1)]


@trust.command("init")
def init(
    context: typer.Context,
    root_key: RootKeys = None,
    threshold: Threshold = 1,
    targets_key: TargetsKeys = None,
    targets_threshold: TargetsThreshold = 1,
    old_root_key: OldRootKeys = None,
    draft: DraftFile = None,
    out: OutFolder = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Take root and targets into the operator's hands: make key files that do not exist, sign root and
    targets here, and leave snapshot and timestamp to the registry's online key. A registry that made its own
    root hands it over if its root.key, from its data folder, is named with --old-root-key."""
    config, registry = connect_over_http(context)
    with registry:
        online, state = _online_key(registry)
        if state.root and not state.signs_all:
            raise InvalidRequest(
                f"{registry.url} has an operator's root already",
                "see: cachesvc admin trust rotate-root",
            )
        present: bytes | None = None
        if state.root:
            present, targets = present_files(config, registry)
        else:
            targets = _first_targets(registry)
        keys = NewKeys(
            read_keys(root_key, make=apply),
            threshold,
            read_keys(targets_key, make=apply),
            targets_threshold,
            private_keys(old_root_key),
        )
        if not keys.root or not keys.targets:
            raise InvalidRequest("--root-key and --targets-key are needed", "name a file for each key")
        keys.check()
        summary = f"give {registry.url} a root of {len(keys.root)} keys, of which {threshold} must sign"
        if not apply:
            missing = [one.text for one in (*keys.root, *keys.targets) if one.public is None]
            summary += f"; make the key files {', '.join(missing)}" if missing else ""
            rows = [*keys.rows(online), *rows_of_targets(targets)]
            show_plan(rows, TRUST_COLUMNS, applied=False, as_json=as_json, summary=summary)
            return
        signed = _next_root(registry.url, present, targets, keys, online)
        finish(registry, signed, summary, apply=True, as_json=as_json, to=draft, out=out)
    if draft is None and not as_json:
        root_file = f"{out}/root.json" if out is not None else "FILE (1.root.json of the registry)"
        pin = f"pin it: cachesvc login {config.url} --root {root_file}; services: CACHESVC_TRUST_ROOT"
        unneeded = "the registry's root.key and targets.key are not needed any more: keep no copy there"
        typer.echo(unneeded if present is not None else pin)


@trust.command("rotate-root")
def rotate_root(
    context: typer.Context,
    root_key: RootKeys = None,
    threshold: Threshold = 1,
    targets_key: TargetsKeys = None,
    targets_threshold: TargetsThreshold = 1,
    old_root_key: OldRootKeys = None,
    draft: DraftFile = None,
    out: OutFolder = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Change the keys or the threshold of the root: old and new keys sign the next root. With --targets-key
    the keys of the targets change too. A registry that made its own root makes new keys itself; then no
    option is needed."""
    with connect(context) as registry:
        state = read_state(registry)
        if state is not None and state.signs_all:
            if root_key or targets_key or old_root_key:
                raise InvalidRequest(
                    "the registry holds its own keys, and makes new ones without key options",
                    "cachesvc admin trust init takes the keys into your hands",
                )
            _rotate_own(registry, ("root", "targets"), apply, as_json)
            return
    config, remote = connect_over_http(context)
    with remote:
        _require_offline_root(state)
        present, targets = present_root(config, remote), None
        if targets_key:
            present, targets = present_files(config, remote)
        root_keys = read_keys(root_key, make=apply)
        if not root_keys:
            raise InvalidRequest("--root-key is needed", "name every key that the next root is to have")
        old = private_keys(old_root_key)
        new_targets = read_keys(targets_key, make=apply)
        keys = NewKeys(root_keys, threshold, new_targets, targets_threshold if new_targets else 0, old)
        keys.check()
        summary = f"a root of {len(root_keys)} keys, of which {threshold} must sign"
        if not apply:
            rows = [row for row in keys.rows("") if row.threshold and row.role in ("root", "targets")]
            show_plan(rows, TRUST_COLUMNS, applied=False, as_json=as_json, summary=summary)
            return
        signed = _next_root(remote.url, present, targets, keys, None)
        finish(remote, signed, summary, apply=True, as_json=as_json, to=draft, out=out)


@trust.command("rotate-online")
def rotate_online(
    context: typer.Context,
    root_key: RootKeys = None,
    draft: DraftFile = None,
    out: OutFolder = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Let the root name the registry's new online key. A registry of one machine makes the key; elsewhere put
    the new one into CACHESVC_SERVER_ONLINE_KEY first. Clients forget versions that a thief of the old key has
    raised."""
    from cachesvc.tuf.changes import next_root
    from cachesvc.tuf.draft import Draft
    from cachesvc.tuf.files import RoleKeys

    with connect(context) as registry:
        state = read_state(registry)
        if state is not None and state.signs_all:
            _rotate_own(registry, ("online",), apply, as_json)
            return
    config, remote = connect_over_http(context)
    with remote:
        _require_offline_root(state)
        present = present_root(config, remote)
        online, state = _online_key(remote)
        if _names_online(present, online):
            if not apply:
                summary = "have the registry make a new online key, and sign a root that names it"
                show_plan([], {}, applied=False, as_json=as_json, summary=summary)
                return
            new = remote.call(
                "POST", "/v1/trust/keys", KeysRequest(("online",)), TrustState, idempotent=False
            )
            online = new.online or online
        key = RoleKeys((PublicKey(online),))
        text = next_root(present, now(), {"snapshot": key, "timestamp": key}).decode()
        signed = Draft(remote.url, present.decode(), text)
        signed = signed.sign_all(private_keys(root_key), "root")
        summary = f"name {key_text(online)} as the key of snapshot and timestamp"
        finish(remote, signed, summary, apply=apply, as_json=as_json, to=draft, out=out)


def _next_root(
    url: str, present: bytes | None, targets: bytes | None, keys: NewKeys, online: str | None
) -> Draft:
    """Return a draft of the next root, with the signatures of the private keys that are here.

    ``targets``: signed anew beside the root; ``None`` leaves them and their keys. ``online``: names this key;
    ``None`` leaves the present one.
    """
    from cachesvc.tuf.changes import next_root, next_targets
    from cachesvc.tuf.draft import Draft
    from cachesvc.tuf.files import RoleKeys

    roles = {"root": RoleKeys(_public(keys.root), keys.threshold)}
    if online is not None:
        roles |= {role: RoleKeys((PublicKey(online),)) for role in ("snapshot", "timestamp")}
    if targets is not None:
        roles["targets"] = RoleKeys(_public(keys.targets), keys.targets_threshold)
    root = next_root(present, now(), roles).decode()
    draft = Draft(url, None if present is None else present.decode(), root)
    if targets is not None:
        draft = replace(draft, targets=next_targets(targets, now(), lambda _: None)[0].decode())
        draft = draft.sign_all(_private(keys.targets), "targets")
    return draft.sign_all((*keys.old_root, *_private(keys.root)), "root")


def _first_targets(registry: Connection) -> bytes:
    """Return targets of the signers that the registry accepts, for a registry without metadata."""
    from cachesvc.tuf.files import make_targets

    signers = registry.rows("/v1/signers", SignerRecord)
    revoked = [
        Revocation(PublicKey(row.key), row.revoked, row.why, None if row.namespace == "*" else row.namespace)
        for row in registry.rows("/v1/revocations", RevokedSigner)
    ]
    return make_targets(1, now(), signers, revoked, [])


def _rotate_own(registry: Connection, names: tuple[str, ...], apply: bool, as_json: bool) -> None:
    """Have a registry that holds its own keys make new ones."""
    if apply:
        registry.call("POST", "/v1/trust/keys", KeysRequest(names), TrustState, idempotent=False)
    keys = " and ".join(f"{name}.key" for name in names)
    summary = f"the registry makes a new {keys} in its data folder, and signs the next root"
    show_plan([], {}, applied=apply, as_json=as_json, summary=summary)


def _online_key(registry: Connection) -> tuple[str, TrustState]:
    """Return the online key that the next root is to name. Raise ``InvalidRequest`` without one."""
    state = read_state(registry)
    if state is None:
        raise InvalidRequest(
            "the registry is a mirror, which signs nothing", "set CACHESVC_URL to its upstream"
        )
    if state.online is None:
        raise InvalidRequest(
            "the registry has no online key",
            "set CACHESVC_SERVER_ONLINE_KEY to a key of cachesvc keygen, on every replica, and restart",
        )
    return state.online, state


def _require_offline_root(state: TrustState | None) -> None:
    if state is None or not state.root:
        raise InvalidRequest("the registry has no root of trust", no_metadata_hint(state))


def _names_online(root: bytes, online: str) -> bool:
    """Return whether a root names an online key already."""
    from cachesvc.tuf.keys import public_key
    from cachesvc.tuf.read import read_root

    present = read_root(root).signed
    keys = [present.keys[keyid] for keyid in present.roles["timestamp"].keyids if keyid in present.keys]
    return any(public_key(key) == online for key in keys)


def _public(keys: Sequence[RoleKey]) -> tuple[PublicKey, ...]:
    return tuple(key.public for key in keys if key.public is not None)


def _private(keys: Sequence[RoleKey]) -> tuple[SigningKey, ...]:
    return tuple(key.private for key in keys if key.private is not None)


def _labels(keys: Sequence[RoleKey]) -> tuple[str, ...]:
    return tuple(f"new: {key.text}" if key.public is None else key.public for key in keys)
