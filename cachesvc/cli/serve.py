"""``cachesvc serve``: runs a registry, on this machine alone unless the settings name other backends."""

from __future__ import annotations

import gc
import json
import logging
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import cachesvc
from cachesvc_client.atomic import replacing
from cachesvc_client.bundle.seal import key_text
from cachesvc_client.wire.errors import InvalidRequest

from . import app
from .serving import memory, server

if TYPE_CHECKING:
    from cachesvc.registry.startup import Credentials
    from cachesvc.settings import Settings

    from .serving.tls import Certificate

EPILOG = (
    "\b\nExamples:\n"
    "  cachesvc serve\n"
    "  cachesvc serve --data /var/lib/cachesvc --port 8750\n"
    "  cachesvc serve --config registry.toml --check-config"
)
_TOKEN_FILE = "admin.token"
"""Name of the file, in the data folder, that holds the admin's token which this start has made."""


@app.command(epilog=EPILOG)
def serve(
    data: Annotated[Path | None, typer.Option(help="Folder of the index, the packs and the key.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 8750 by default, 0 for any free one.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Make another admin token, in admin.token of the data folder.")
    ] = False,
    check_config: Annotated[
        bool,
        typer.Option(
            "--check-config", help="Check settings, certificate, database and store; start nothing."
        ),
    ] = False,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write {url, token, trust, signing_key} here as JSON when ready.")
    ] = None,
) -> None:
    """Run a registry on this machine; nothing else has to be started."""
    try:
        from cachesvc.api import logs
        from cachesvc.settings import ignored_line, read_settings
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"serve needs {error.name}", "pip install 'cachesvc[server]'") from None
    settings = read_settings(config, data=data, host=host, port=port)
    logs.configure(settings.log)
    if line := ignored_line():
        logging.getLogger("cachesvc.serve").info("%s", line)
    if check_config:
        _check_config(settings)
        return
    with server.listening(settings.host, settings.port) as listener:
        _serve(settings, listener, new_token, ready_file)


def _serve(settings: Settings, listener: socket.socket, new_token: bool, ready_file: Path | None) -> None:
    memory.give_back_large_blocks()
    # These imports take a second, so what can be refused without them has been checked.
    with no_collections():
        from cachesvc.api.app import create_app
        from cachesvc.bootstrap import open_registry, signing_key_path
        from cachesvc.registry.startup import prepare_credentials

    certificate = _certificate(settings)
    with _spans(), open_registry(settings, prove_bucket=True) as registry:
        credentials = prepare_credentials(
            registry, signing_key_path(settings), first_token=settings.first_token, new_token=new_token
        )
        url = server.url_of(listener, "https" if certificate else "http")
        app = create_app(
            registry,
            gc_seconds=settings.gc_seconds or None,
            token_requests=settings.token_requests,
            web_page=settings.web_page and registry.mirror is None,
            metrics_namespaces=settings.metrics_namespaces,
            mirror_seconds=settings.upstream_seconds,
        )
        server.run(
            app,
            listener,
            ready=lambda: _announce(url, credentials, settings, ready_file),
            ending=app.state.waiting.close,
            settings=settings,
            certificate=certificate,
        )


@contextmanager
def _spans() -> Iterator[None]:
    """Records spans for the block, if the environment asks for them. Where they cannot be sent, a line says
    why, and the registry serves: a cluster may set the variables for all that runs in it."""
    from cachesvc import spans

    try:
        spans.start(cachesvc.__version__)
    except InvalidRequest as error:
        logging.getLogger("cachesvc.spans").warning("no traces are sent: %s", error)
    try:
        yield
    finally:
        spans.stop()


def _check_config(settings: Settings) -> None:
    """Prints what a start with these settings would use. Changes nothing: it makes no folder, no file and no
    table. Raises what a start would raise."""
    from cachesvc.bootstrap import check_backends

    certificate = _certificate(settings)
    with server.listening(settings.host, settings.port) as listener:
        url = server.url_of(listener, "https" if certificate else "http")
    for part, found in [("address", url), *check_backends(settings)]:
        print(f"{part:<10}{found}")
    print("the settings are usable; nothing was started or changed")


@contextmanager
def no_collections() -> Iterator[None]:
    """Turns Python's garbage collector off for the block, and spares what the block made from all later
    searches: imports make no garbage, and the searches took a fifth of the start."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _certificate(settings: Settings) -> Certificate | None:
    from .serving.tls import Certificate

    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return Certificate(settings.tls_certificate, settings.tls_key)


def _announce(url: str, credentials: Credentials, settings: Settings, ready_file: Path | None) -> None:
    if settings.embedded:
        print(f"data in {settings.data}")
    if credentials.secret is not None:
        token_file = settings.data / _TOKEN_FILE
        # Without an embedded index or store nothing has made the folder yet.
        settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_private(token_file, credentials.secret, "the admin's token")
        print(f"the admin's token is in {token_file}, for you alone; delete the file after the login")
        parts = [f"cachesvc login {url} --token-file {shlex.quote(str(token_file))}"]
        if credentials.trust is not None:
            parts.append(f"--trust {credentials.trust} --signing-key {credentials.signing_key}")
        print("log in with:\n  " + " ".join(parts))
    if settings.upstream_url:
        print(f"a mirror of {settings.upstream_url}")
    if credentials.root_keys:
        print(f"root of trust: key {', '.join(map(key_text, credentials.root_keys))}; login pins it")
    everywhere = ", and on every other address of this machine" if settings.host in server.WILDCARDS else ""
    print(f"listening on {url}{everywhere}", flush=True)
    if ready_file is not None:
        facts = {
            "url": url,
            "token": credentials.secret,
            "trust": credentials.trust,
            "signing_key": str(credentials.signing_key) if credentials.trust is not None else None,
        }
        text = json.dumps({key: value for key, value in facts.items() if value})
        _write_private(ready_file, text, "--ready-file")


def _write_private(path: Path, text: str, what: str) -> None:
    """Writes a file that is whole or absent, readable for this user only: it may contain a secret."""
    try:
        with replacing(path, 0o600) as file:
            file.write(f"{text}\n".encode())
    except OSError as error:
        raise InvalidRequest(f"{what} {path}: {error.strerror or error}") from None
