"""Run Ceph's S3 gateway on one host: a monitor, an object store in memory, and radosgw."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .process import absent, connects, folder, free_port, running, until

PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "ceph-authtool", "monmaptool")
STORE_BYTES = 4 << 30


@dataclass(frozen=True)
class Gateway:
    """Is an S3 of its own, with one user."""

    endpoint: str
    access_key: str = "tester"
    secret_key: str = "tester-secret"

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables of a process that uses the gateway as AWS tools do."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @property
    def client(self) -> dict[str, str]:
        """Return the arguments of a boto3 client."""
        return {
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "region_name": "us-east-1",
        }


@contextlib.contextmanager
def ceph_gateway() -> Iterator[Gateway]:
    """Start a gateway, which takes seconds. Any user may run it."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            absent(f"Ceph's {program}", "radosgw ceph-mon ceph-osd")
    with folder("ceph") as place, contextlib.ExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        cluster = _Cluster(place, ports)
        cluster.write()
        cluster.make_monitor()
        # SIGKILL ends the servers: otherwise the store would write all of its memory to disk first.
        monitor = stack.enter_context(
            running(cluster.command("ceph-mon", "-i", "a", "-f"), place, signal.SIGKILL)
        )
        until(lambda: connects(ports[0]), monitor, place)
        cluster.make_store()
        stack.enter_context(running(cluster.command("ceph-osd", "-i", "0", "-f"), place, signal.SIGKILL))
        gateway = Gateway(f"http://127.0.0.1:{ports[2]}")
        cluster.run(
            "radosgw-admin", "-n", "client.rgw", "user", "create", "--uid=tester", "--display-name=tester",
            f"--access-key={gateway.access_key}", f"--secret-key={gateway.secret_key}",
        )  # fmt: skip
        serving = stack.enter_context(
            running(cluster.command("radosgw", "-n", "client.rgw", "-f"), place, signal.SIGKILL)
        )
        until(lambda: connects(ports[2]), serving, place)
        yield gateway


class _Cluster:
    def __init__(self, place: Path, ports: list[int]) -> None:
        self._place, self._ports = place, ports
        self._fsid, self._addresses = str(uuid.uuid4()), f"[v2:127.0.0.1:{ports[0]},v1:127.0.0.1:{ports[1]}]"
        self._keyring = place / "keyring"

    def command(self, program: str, *options: str) -> list[str]:
        return [program, "-c", str(self._place / "ceph.conf"), *options]

    def run(self, program: str, *options: str) -> None:
        result = subprocess.run(
            self.command(program, *options), cwd=self._place, capture_output=True, text=True, timeout=120
        )
        assert result.returncode == 0, f"{program} {options}: {result.stderr[-2000:]}"

    def write(self) -> None:
        settings = {
            "fsid": self._fsid,
            "keyring": self._keyring,
            "mon_host": self._addresses,
            "public_network": "127.0.0.0/8",
            "osd_pool_default_size": 1,
            "osd_pool_default_min_size": 1,
            "osd_pool_default_pg_num": 1,
            "osd_pool_default_pgp_num": 1,
            "osd_pool_default_pg_autoscale_mode": "off",
            "osd_crush_chooseleaf_type": 0,
            "mon_allow_pool_size_one": "true",
            "mon_max_pg_per_osd": 2000,
            "run_dir": self._place,
            "log_file": self._place / "$name.log",
            "admin_socket": self._place / "$name.$pid.asok",
            "mon_data": self._place / "mon",
            "osd_data": self._place / "osd",
            "osd_objectstore": "memstore",
            "memstore_device_bytes": STORE_BYTES,
            # The monitor decides at once, and runs on a full disk of the machine.
            "paxos_propose_interval": 0.02,
            "paxos_min_wait": 0.01,
            "mon_data_avail_crit": 1,
            "mon_data_avail_warn": 2,
        }
        lines = ["[global]", *(f"{name} = {value}" for name, value in settings.items())]
        lines += ["[client.rgw]", f"rgw_frontends = beast endpoint=127.0.0.1:{self._ports[2]}"]
        (self._place / "ceph.conf").write_text("\n".join(lines) + "\n")

    def make_monitor(self) -> None:
        keyring, monmap = str(self._keyring), str(self._place / "monmap")
        everything = ["--cap", "mon", "allow *", "--cap", "osd", "allow *"]
        self._key("mon.", ["--cap", "mon", "allow *"], "--create-keyring")
        self._key("client.admin", [*everything, "--cap", "mgr", "allow *"])
        self._key("client.rgw", ["--cap", "mon", "allow rw", "--cap", "osd", "allow rwx"])
        self._key("osd.0", everything)
        subprocess.run(
            ["monmaptool", "--create", "--fsid", self._fsid, "--addv", "a", self._addresses, monmap],
            check=True,
            capture_output=True,
        )
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)

    def make_store(self) -> None:
        store = str(uuid.uuid4())
        self.run("ceph", "osd", "new", store)
        (self._place / "osd").mkdir()
        self.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", store)

    def _key(self, name: str, caps: list[str], *options: str) -> None:
        command = ["ceph-authtool", *options, str(self._keyring), "--gen-key", "-n", name, *caps]
        subprocess.run(command, check=True, capture_output=True)
