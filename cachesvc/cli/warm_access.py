"""Give a run of `warm` what signs, and its registry. What is missing is an error before anything compiles."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from cachesvc_client.wire.errors import Forbidden, InvalidRequest

if TYPE_CHECKING:
    from cachesvc.warm.context import RegistryAccess, WarmContext
    from cachesvc.warm.job_token import JobTokenSource
    from cachesvc.warm.provenance import BuildOrigin
    from cachesvc_client.bundle.seal import Signer, SigningKey
    from cachesvc_client.config.settings import Config
    from cachesvc_client.http.registry import Remote
    from cachesvc_client.wire.manifest.provenance import BuilderIdentity
    from cachesvc_client.wire.names import Lane


_PR_SET_DUMPABLE = 4
"""Option of prctl(2), Linux: whether other processes of the user may read this one's memory."""


def take_key(variable: str | None) -> SigningKey | None:
    """Take the signing key out of the environment, so that no child inherits it.

    ``variable``: what ``--signing-key-env`` names; else the one that ``CACHESVC_SIGNING_KEY=env:NAME`` names.
    """
    from cachesvc_client.config.settings import key_variable

    option = "--signing-key-env"
    if variable is None:
        option, variable = "CACHESVC_SIGNING_KEY", key_variable(os.environ.get("CACHESVC_SIGNING_KEY", ""))
        if not variable:
            return None
        del os.environ["CACHESVC_SIGNING_KEY"]
    from cachesvc_client.bundle.seal import SigningKey

    text = os.environ.pop(variable, "")
    if not text.strip():
        raise InvalidRequest(f"{option}: {variable[:60]} is not set", "set it to what keygen wrote")
    return SigningKey.from_text(text, f"{option}: {variable[:60]}")


def take_job(source: str | None) -> JobTokenSource | None:
    """Take the means to a token of this CI job out of the environment, so that no child inherits them."""
    if not source:
        return None
    from cachesvc.warm.job_token import take_source

    return take_source(source, os.environ)


def with_registry(
    context: WarmContext, config: Config, job: JobTokenSource | None, stack: ExitStack
) -> WarmContext:
    """Add registry and signer, as far as this run needs them.

    Raise ``Untrusted`` if the pinned root does not let the signer sign here: services would refuse everything
    that this run publishes.
    """
    check, sealing = context.task == "check", context.sealing
    key = None if check else sealing.key or _configured_signer(config)
    if context.out and not check:
        return replace(context, sealing=replace(sealing, key=key or _own_key()))
    if not config.url:
        raise InvalidRequest("no registry", "run cachesvc login, set CACHESVC_URL, or use --out DIR")
    if not check and key is None:
        raise InvalidRequest(
            "no signing key",
            "run cachesvc login --signing-key, set CACHESVC_SIGNING_KEY or CACHESVC_SIGNER, or use "
            "--signing-key-env",
        )
    remote, lane = _connect(context, config, job, stack)
    token = remote.whoami()
    if not check and token.role not in ("write", "admin"):
        raise Forbidden(
            f"the token may only {token.role}", "publishing needs a write token; --check does not"
        )
    from cachesvc_client.queries.trust import check_publisher

    registry = _registry_access(context, config, remote, key)
    if key is not None:
        check_publisher(registry.acceptance.policy, key.public, context.name, lane)
        _warn_of_builder(config, token.builder, sealing.origin)
    # Who this job is says the registry, by the token that it verified: a builder cannot name itself.
    origin = replace(sealing.origin, identity=token.builder) if sealing.origin else None
    return replace(context, sealing=replace(sealing, key=key, origin=origin), lane=lane, registry=registry)


def _configured_signer(config: Config) -> Signer | None:
    from cachesvc_client.publication.signer import signer_of

    return signer_of(config)


def _registry_access(
    context: WarmContext, config: Config, remote: Remote, key: Signer | None
) -> RegistryAccess:
    """Return the registry, with what decides which of its revisions a service would accept."""
    from cachesvc.warm.context import RegistryAccess
    from cachesvc_client.bundle.seal import TrustedKey
    from cachesvc_client.queries.trust import registry_policy

    own = (TrustedKey(f"{context.name.namespace}={key.public}"),) if key else ()
    acceptance = config.acceptance(registry_policy(config, remote)).trusting(*own)
    return RegistryAccess(remote, acceptance, config.trust_root)


def _warn_of_builder(config: Config, identity: BuilderIdentity | None, origin: BuildOrigin | None) -> None:
    """Warn if what this run publishes does not meet the user's own requirement: then it is never fresh."""
    from cachesvc_client.wire.manifest.provenance import LOCAL_BUILDER, SOURCE, Dependency, tree_named

    if config.require is None:
        return
    builder = identity.builder if identity else LOCAL_BUILDER
    ref = Dependency(SOURCE, identity.source).ref if identity else None
    tree = tree_named(origin.dependencies) if origin else None
    difference = config.require.difference(builder, ref, tree)
    if difference is not None:
        typer.echo(
            f"warning: CACHESVC_REQUIRE asks for {config.require}; what this run publishes does not meet it: "
            f"{difference}",
            err=True,
        )


def _connect(
    context: WarmContext, config: Config, job: JobTokenSource | None, stack: ExitStack
) -> tuple[Remote, Lane | None]:
    """Connect with the user's token, or with one that the registry gives to this CI job. Return the
    connection and the lane to write to."""
    from cachesvc.warm.job_login import TIMEOUT, JobLogin, logged_in
    from cachesvc_client.http.registry import Remote

    assert config.url is not None
    if job is None:
        return stack.enter_context(Remote(config.url, config.token, timeout=TIMEOUT)), context.lane
    # The replays of a check are model code, and get the token: it must not be one that may write.
    role = "read" if context.task == "check" else "write"
    login = JobLogin(job, config.url, context.name.namespace, context.lane, role)
    remote, token = stack.enter_context(logged_in(login, lambda line: typer.echo(line, err=True)))
    return remote, token.lane


def _own_key() -> SigningKey:
    """Load the user's own signing key; the first run that has none makes it.

    The key lies beside the login file and not beside the bundles, which are copied into images.
    """
    from cachesvc_client.bundle.seal import SigningKey
    from cachesvc_client.config.login import login_path

    login = login_path()
    if login is None:
        raise InvalidRequest("no signing key, and no home folder for one", "set CACHESVC_SIGNING_KEY")
    path = login.parent / "signing.key"
    if path.exists():
        return SigningKey.load(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = SigningKey.generate()
    key.save(path)
    typer.echo(f"made {path}; services need CACHESVC_TRUSTED_KEYS={key.public}", err=True)
    return key


def hide_from_other_processes() -> None:
    """Keep this process's variables and memory, with the token and the signing key, from the models' code.

    That code runs in children, as the same user. ``/proc/PID/environ``, ``mem`` and ``fd`` of a process that
    is not dumpable are closed to all that lack CAP_SYS_PTRACE: prctl(2), ptrace(2). A child that starts
    another program is dumpable again.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
