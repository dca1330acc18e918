"""``python -m tests.faults.hosts``: runs `doctor` on hosts whose home fits compilers less than TMPDIR, and
writes what it says of folders to benchmarks/results/hosts.json. Needs the right to mount; the mounts are
private."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "hosts.json"
HOSTS = {
    "a home that is mounted noexec": ("/home/svc", "mount -o remount,noexec /home"),
    "a space in HOME": ("/home/my svc", "true"),
    "a home without room": ("/home/svc", "mount -o remount,size=60k /home"),
    "a home that is read-only": ("/home/svc", "mount -o remount,ro /home"),
    "a space in HOME and in TMPDIR": ("/home/my svc", "true"),
}
"""What is said of a host -> its HOME, and what makes it so."""
CHECKS = ("candidate", "node store")


def look(host: str) -> list[tuple[str, str, str]]:
    """Return status, check and finding of each line of `doctor` about folders."""
    home, change = HOSTS[host]
    temporary = "/tmp/my tmp" if "TMPDIR" in host else "/tmp"
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        out = Path(folder, "doctor.json")
        script = (
            f"exec 3>{out} && cd / && mount -t tmpfs tmpfs /home && mkdir -m 700 '{home}' && {change} && "
            "mount -t tmpfs -o mode=1777 tmpfs /var/tmp && mount -t tmpfs -o mode=1777 tmpfs /tmp && "
            f"mkdir -p '{temporary}' && HOME='{home}' TMPDIR='{temporary}' "
            f"{sys.executable} -m cachesvc_client doctor --json >&3"
        )
        environ = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        subprocess.run(["unshare", "--mount", "sh", "-c", script], env=environ, check=False)
        checks = json.loads(out.read_text())["checks"]
    return [(one["status"], one["what"], one["found"]) for one in checks if one["what"] in CHECKS]


def main() -> None:
    """Look at every host, and note what was said."""
    found = {host: look(host) for host in HOSTS}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
