"""Run PgBouncer."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from urllib.parse import urlsplit

from .process import absent, connects, folder, free_port, running, until


@contextlib.contextmanager
def pgbouncer(url: str, **settings: str) -> Iterator[str]:
    """Return ``postgresql://…`` of a PgBouncer before the server at ``url``, which asks for no password.

    It has two connections to the server, and gives each transaction one of them, if ``settings`` say nothing
    else.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        absent("PgBouncer", "pgbouncer")
    server, port = urlsplit(url), free_port()
    lines = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "default_pool_size": "2",
        **settings,
    }
    with folder("pgbouncer") as place:
        user = []
        if os.getuid() == 0:  # PgBouncer refuses to run as root.
            user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(place, "postgres", "postgres")
        databases = f"[databases]\n* = host=127.0.0.1 port={server.port} user={server.username}\n"
        texts = "\n".join(f"{name} = {value}" for name, value in lines.items())
        (place / "pgbouncer.ini").write_text(f"{databases}[pgbouncer]\n{texts}\n")
        command = [*user, program, str(place / "pgbouncer.ini")]
        with running(command, place, signal.SIGQUIT) as process:
            until(lambda: connects(port), process, place)
            yield f"postgresql://{server.username}@127.0.0.1:{port}"
