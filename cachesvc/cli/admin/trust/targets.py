"""``cachesvc admin trust delegate``, ``revoke`` and ``renew``: what the operator's targets say."""

from __future__ import annotations

from typing import Annotated

import typer

from cachesvc.console.output import Apply, AsJson, show_plan
from cachesvc.schema.access import SignerRecord
from cachesvc.schema.revocations import Revocation, RevocationRequest
from cachesvc.schema.trust_changes import TrustState
from cachesvc_client.bundle.seal import PublicKey
from cachesvc_client.wire.durations import parse_duration
from cachesvc_client.wire.errors import InvalidRequest
from cachesvc_client.wire.names import Lane
from cachesvc_client.wire.text import count_text

from ... import completion
from ...arguments import parse_namespace, parse_option
from ..connection import connect, connect_over_http
from .keys import complete_key, match_key
from .offline import (
    DraftFile,
    RootKeys,
    TargetsKeys,
    finish,
    now,
    present_files,
    private_keys,
    require_signatures,
)
from .show import trust
from .signers import KnownKey, revocation_summary
from .state import no_metadata_hint, read_state


@trust.command("delegate")
def delegate(
    context: typer.Context,
    namespace: Annotated[str, typer.Argument(help="A namespace, or '*' for all.")],
    key: Annotated[list[str] | None, typer.Option(help="ed25519:… that may sign there; repeat it.")] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            help="A key that may sign there no more, and did not leak: ed25519:…, its beginning, or its id.",
            autocompletion=completion.keys,
        ),
    ] = None,
    lane: Annotated[
        str | None, typer.Option(help="Only for lanes of this pattern, such as 'pr-*'; never for the trunk.")
    ] = None,
    threshold: Annotated[int | None, typer.Option(min=1, help="How many of the keys must sign.")] = None,
    targets_key: TargetsKeys = None,
    draft: DraftFile = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Let keys sign for a namespace, or for a pattern of its lanes, and let the registry accept them. Prints
    the targets that it signs: read them."""
    from cachesvc.tuf import changes
    from cachesvc.tuf.draft import Draft

    place = namespace if namespace == "*" else parse_namespace(namespace)
    pattern = None if lane is None else _lane_pattern(lane)
    added = [parse_option(lambda one=one: PublicKey(one)) for one in key or []]  # type: ignore[misc]
    if not (added or remove or threshold):
        raise InvalidRequest("nothing to change", "name --key, --remove or --threshold")
    config, registry = connect_over_http(context)
    with registry:
        _require_offline_targets(read_state(registry), f"cachesvc admin signers add KEY -n {place}")
        root, targets = present_files(config, registry)
        present = changes.role_keys(targets, place, pattern)
        whose = f"key that may sign for {place}" + (f" in lanes {pattern}" if pattern else "")
        removed = [match_key(one, present, whose, "see: cachesvc admin trust show") for one in remove or []]
        data, role = changes.next_targets(
            targets, now(), lambda one: changes.delegate(one, place, pattern, added, removed, threshold)
        )
        signed = Draft(registry.url, root.decode(), targets=data.decode())
        signed = signed.sign_all(private_keys(targets_key), "targets")
        if apply:
            require_signatures(signed, draft)
            for public in added:
                registry.call("POST", "/v1/signers", SignerRecord(place, public), SignerRecord)
        paths = " ".join(role.paths or [])
        summary = f"delegate {paths}: {role.threshold} of {count_text(len(role.keyids), 'key')} must sign"
        if not role.keyids:
            summary = f"delegate {paths} to nobody: its last key is removed"
        finish(registry, signed, summary, apply=apply, as_json=as_json, to=draft)


@trust.command("revoke")
def revoke(
    context: typer.Context,
    key: KnownKey,
    why: Annotated[str, typer.Option(help="The reason, which the targets list and services log.")],
    targets_key: TargetsKeys = None,
    draft: DraftFile = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Revoke a key that leaked: the registry withholds what it signed, the key leaves every delegation, and
    the targets list it with the reason. A registry that made its own root signs the targets itself."""
    path = "/v1/revocations" if apply else "/v1/revocations/plan"
    with connect(context) as registry:
        whole = complete_key(registry, key)
        request = parse_option(lambda: RevocationRequest(whole, "*", why))
        state = read_state(registry)
        if state is None or state.signs_all or not state.root:
            summary = revocation_summary(registry.call("POST", path, request, Revocation))
            show_plan([], {}, applied=apply, as_json=as_json, summary=summary)
            return
    from cachesvc.tuf import changes
    from cachesvc.tuf.draft import Draft

    config, remote = connect_over_http(context)
    with remote:
        root, targets = present_files(config, remote)
        data, left = changes.next_targets(targets, now(), lambda one: changes.revoke(one, whole, now(), why))
        signed = Draft(remote.url, root.decode(), targets=data.decode())
        signed = signed.sign_all(private_keys(targets_key), "targets")
        if apply:
            require_signatures(signed, draft)
        withheld = revocation_summary(remote.call("POST", path, request, Revocation))
        summary = f"{withheld}; the key leaves {', '.join(left) or 'no role'}"
        finish(remote, signed, summary, apply=apply, as_json=as_json, to=draft)


@trust.command("max-age")
def max_age(
    context: typer.Context,
    namespace: Annotated[
        str, typer.Argument(help="A namespace, or '*' for all without an age of their own.")
    ],
    age: Annotated[str, typer.Argument(help="Such as 90d; 'default' says nothing, which means 365 days.")],
    targets_key: TargetsKeys = None,
    draft: DraftFile = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Sign for how long a namespace's revisions count: services with a pinned root refuse older ones, whoever
    kept them."""
    from cachesvc.tuf import changes
    from cachesvc.tuf.draft import Draft

    place = namespace if namespace == "*" else parse_namespace(namespace)
    seconds = None if age == "default" else int(parse_option(lambda: parse_duration(age)))
    if seconds == 0:
        raise InvalidRequest("age: no revision is that young", "name 1s or more")
    config, registry = connect_over_http(context)
    with registry:
        setting = f"put {place}={age} into CACHESVC_SERVER_MAX_AGE, and restart it"
        _require_offline_targets(read_state(registry), setting)
        root, targets = present_files(config, registry)
        data, _ = changes.next_targets(targets, now(), lambda one: changes.set_max_age(one, place, seconds))
        signed = Draft(registry.url, root.decode(), targets=data.decode())
        signed = signed.sign_all(private_keys(targets_key), "targets")
        if apply:
            require_signatures(signed, draft)
        counts = f"count for {age}" if seconds else "have no age of their own in the targets"
        summary = f"revisions of {'every namespace' if place == '*' else place} {counts}"
        finish(registry, signed, summary, apply=apply, as_json=as_json, to=draft)


@trust.command("renew")
def renew(
    context: typer.Context,
    root_key: RootKeys = None,
    targets_key: TargetsKeys = None,
    draft: DraftFile = None,
    apply: Apply = False,
    as_json: AsJson = False,
) -> None:
    """Sign targets and root anew, for another year, before their time is over or after it: the targets with
    --targets-key, the root with --root-key."""
    from cachesvc.tuf import changes
    from cachesvc.tuf.draft import Draft

    if not (root_key or targets_key):
        raise InvalidRequest("nothing to renew", "--targets-key renews the targets, --root-key the root")
    config, registry = connect_over_http(context)
    with registry:
        state = read_state(registry)
        if state is not None and state.signs_all:
            raise InvalidRequest(f"{registry.url} renews its own root and targets", "nothing is to be done")
        root, targets = present_files(config, registry)
        following = changes.next_root(root, now(), {}).decode() if root_key else None
        data = changes.next_targets(targets, now(), lambda _: None)[0].decode() if targets_key else None
        signed = Draft(registry.url, root.decode(), following, data)
        signed = signed.sign_all(private_keys(root_key), "root")
        signed = signed.sign_all(private_keys(targets_key), "targets")
        names = [name for name, text in (("root", following), ("targets", data)) if text is not None]
        summary = f"sign {' and '.join(names)} anew for 365 days"
        finish(registry, signed, summary, apply=apply, as_json=as_json, to=draft)


def _lane_pattern(text: str) -> str:
    """Return a pattern of lanes. Raise ``InvalidRequest`` for what no lane fits."""
    parse_option(lambda: Lane(text.replace("*", "x").replace("?", "x")))
    return text


def _require_offline_targets(state: TrustState | None, instead: str) -> None:
    if state is None or not state.root:
        raise InvalidRequest("the registry has no root of trust", no_metadata_hint(state))
    if state.signs_all:
        raise InvalidRequest("this registry signs its own targets, from its signers and settings", instead)
