"""Run PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .process import absent, folder, free_port, running, until


@contextlib.contextmanager
def postgresql_server(password: str = "") -> Iterator[str]:
    """Return ``postgresql://…`` of a server without databases of the tests. The server asks for ``password``
    if there is one."""
    import psycopg

    programs = _programs()
    with folder("postgresql") as place:
        user = []
        if os.getuid() == 0:  # The server refuses to run as root.
            user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(place, "postgres", "postgres")
        data, port = str(place / "data"), free_port()
        initdb = [str(programs / "initdb"), "-D", data, "--no-sync", "-U", "tester"]
        initdb += ["-A", "trust", "-E", "UTF8", "--locale=C"]
        if password:
            (place / "password").write_text(password)
            initdb += ["-A", "scram-sha-256", f"--pwfile={place / 'password'}"]
        subprocess.run([*user, *initdb], check=True, stdout=subprocess.DEVNULL, cwd=place)
        options = ["fsync=off", "synchronous_commit=off", "full_page_writes=off", f"port={port}"]
        options += ["listen_addresses=127.0.0.1", "unix_socket_directories="]
        flags = [part for option in options for part in ("-c", option)]
        command = [*user, str(programs / "postgres"), "-D", data, *flags]
        url = f"postgresql://tester{':' * bool(password)}{password}@127.0.0.1:{port}"

        def answers() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(f"{url}/postgres").close()
                return True
            return False

        # End at once: nothing of the data is needed again. (SIGKILL would leave child processes behind.)
        with running(command, place, signal.SIGQUIT) as process:
            until(answers, process, place)
            yield url


def _programs() -> Path:
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if programs:
        return programs[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        absent("PostgreSQL", "postgresql")
    return Path(on_path).parent
