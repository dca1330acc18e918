"""``cachesvc serve``: the embedded registry."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, Unavailable

from . import app

if TYPE_CHECKING:
    from cachesvc.registry.startup import Welcome
    from cachesvc.settings import Settings

    from .tls import Certificate

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_TICKS_OF_A_LOOK = 100
"""Of uvicorn, ten a second: a renewed certificate is taken up within ten seconds."""


@app.command()
def serve(
    data: Annotated[Path | None, typer.Option(help="Folder of the index, the packs and the key.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 8750 by default, 0 for any free one.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Make and print another admin token.")
    ] = False,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write {url, token, trust, signing_key} here as JSON when ready.")
    ] = None,
) -> None:
    """Run a registry on this machine; nothing else has to be started."""
    try:
        from cachesvc.api import logs
        from cachesvc.settings import read_settings
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"serve needs {error.name}", "pip install 'cachesvc[server]'") from None
    settings = read_settings(config, data=data, host=host, port=port)
    logs.configure(settings.log)
    with _listening(settings.host, settings.port) as listener:
        _serve(settings, listener, new_token, ready_file)


def _serve(settings: Settings, listener: socket.socket, new_token: bool, ready_file: Path | None) -> None:
    # Two seconds of imports: what can be refused before them has been.
    from cachesvc.api.app import create_app
    from cachesvc.bootstrap import open_registry, signing_key_path
    from cachesvc.registry.startup import welcome

    certificate = _certificate(settings)
    with open_registry(settings, proven=True) as registry:
        made = welcome(
            registry, signing_key_path(settings), first_token=settings.first_token, new_token=new_token
        )
        url = _url(listener, "https" if certificate else "http")
        app = create_app(
            registry, gc_seconds=settings.gc_seconds or None, token_requests=settings.token_requests
        )
        _run(
            app,
            listener,
            lambda: _announce(url, made, settings, ready_file),
            app.state.waiting.close,
            settings.shutdown_seconds,
            certificate,
        )


def _certificate(settings: Settings) -> Certificate | None:
    from .tls import Certificate

    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return Certificate(settings.tls_certificate, settings.tls_key)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol named, asyncio turns Nagle's delay off: without, each answer takes 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise InvalidRequest(f"--host {host}: {error.strerror or error}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}", "choose another with --port"
        ) from None
    return listener


def _url(listener: socket.socket, scheme: str) -> str:
    """Where this machine reaches it: clients take no wildcard for loopback, and send it no token."""
    host, port = listener.getsockname()[:2]
    host = _WILDCARDS.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _run(
    application: object,
    listener: socket.socket,
    ready: Callable[[], None],
    ending: Callable[[], None],
    shutdown_seconds: int,
    certificate: Certificate | None,
) -> None:
    """Serves until SIGTERM or SIGINT; requests under way get ``shutdown_seconds`` to end, and ``ending`` is
    called before they do."""
    import uvicorn

    failed: list[CacheSvcError] = []

    class Server(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            if certificate and self.config.ssl and counter % _TICKS_OF_A_LOOK == 0:
                certificate.renew(self.config.ssl)
            return await super().on_tick(counter)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                try:
                    ready()
                except CacheSvcError as error:
                    failed.append(error)
                    self.should_exit = True

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            ending()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        application,  # type: ignore[arg-type]
        log_level="warning",
        log_config=None,  # its words go where ours go
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=shutdown_seconds,
        ssl_certfile=certificate.chain if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )
    # uvicorn sends itself the signal again when it is done: for us that is a normal end.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server = Server(config)
    server.run([listener])
    if failed:
        raise failed[0]
    if not server.started:
        raise Unavailable("the server did not start", "see the log above")


def _announce(url: str, made: Welcome, settings: Settings, ready_file: Path | None) -> None:
    if settings.embedded:
        print(f"data in {settings.data}")
    if made.secret is not None:
        parts = [f"cachesvc login {url} --token {made.secret}"]
        if made.trust is not None:
            parts.append(f"--trust {made.trust} --signing-key {made.signing_key}")
        print("log in with:\n  " + " ".join(parts))
    everywhere = ", and on every other address of this machine" if settings.host in _WILDCARDS else ""
    print(f"listening on {url}{everywhere}", flush=True)
    if ready_file is not None:
        facts = {
            "url": url,
            "token": made.secret,
            "trust": made.trust,
            "signing_key": str(made.signing_key) if made.trust is not None else None,
        }
        _write_private(ready_file, json.dumps({key: value for key, value in facts.items() if value}))


def _write_private(path: Path, text: str) -> None:
    """Whole or absent, and for this user only: it may hold a secret."""
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temp.unlink(missing_ok=True)
        with os.fdopen(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
        temp.replace(path)
    except OSError as error:
        raise InvalidRequest(f"--ready-file {path}: {error.strerror or error}") from None
