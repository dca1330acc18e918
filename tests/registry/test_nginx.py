"""Test the nginx of the recipe, and an nginx as it comes, before a registry."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_making import FINGERPRINT, Server, listens, make, ok

from cachesvc_client.http.registry import Remote
from cachesvc_client.http.uploads import Uploads
from cachesvc_client.wire.errors import TooLarge
from cachesvc_client.wire.names import Name
from cachesvc_client.wire.requests.protocol import ResolveRequest, UploadRequest
from tests.services.process import absent, free_port

RECIPE = Path(__file__).parents[2] / "docs" / "recipes" / "deployment.md"
NAME = Name.parse("team/bert")


@contextlib.contextmanager
def nginx(folder: Path, site: str) -> Iterator[None]:
    """Run nginx with this site for the block."""
    program = shutil.which("nginx") or absent("nginx", "nginx-light")
    folder.mkdir()
    places = "".join(
        f"{what}_temp_path {folder}/{what};\n"
        for what in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    user = "user root;\n" if os.geteuid() == 0 else ""
    config.write_text(
        f"{user}daemon off;\nerror_log stderr;\npid {folder}/pid;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{places}{site}\n}}\n"
    )
    process = subprocess.Popen(
        [program, "-p", str(folder), "-c", str(config)], stderr=subprocess.PIPE, text=True
    )
    port = int(re.search(r"listen 127\.0\.0\.1:(\d+);", site)[1])
    try:
        until = time.monotonic() + 20
        while not listens(port):
            assert process.poll() is None and time.monotonic() < until, process.stderr.read()
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.communicate(timeout=20)


def recipe(port: int, replicas: list[int]) -> str:
    """Return the site of the page, without TLS and with these ports."""
    [site] = re.findall(r"```nginx\n(.*?)```", RECIPE.read_text(), re.DOTALL)
    site = re.sub(r" +ssl_[a-z_]+ .*;\n", "", site).replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    for shown, real in zip(("8751", "8752"), replicas, strict=True):
        assert shown in site
        site = site.replace(f"127.0.0.1:{shown}", f"127.0.0.1:{real}")
    return site


def test_the_recipe_takes_large_packs_and_hides_a_replica_that_died(server: Server, tmp_path: Path) -> None:
    alive, dead, port = int(server.url.rpartition(":")[2]), free_port(), free_port()
    publication = make(server.key, content=os.urandom(3 << 20))
    with nginx(tmp_path / "nginx", recipe(port, [dead, alive])):
        through = server.api()
        through.http.base_url = f"http://127.0.0.1:{port}"
        ok(through.publish(publication))
        remote = Remote(f"http://127.0.0.1:{port}", server.token, retries=0)
        for _ in range(20):  # each would meet the dead replica at some turn
            request = ResolveRequest(NAME.namespace, NAME.name, FINGERPRINT, (NAME.tag,))
            assert remote.resolve(request)
        assert through.http.get("/metrics").status_code == 404


def test_nginx_as_it_comes_refuses_a_pack_with_a_line_that_says_what_to_change(
    server: Server, tmp_path: Path
) -> None:
    port = free_port()
    site = f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {server.url}; }} }}"
    publication = make(server.key, name="large", content=os.urandom(3 << 20))
    pack = tmp_path / "pack"
    pack.write_bytes(publication.pack)
    with nginx(tmp_path / "nginx", site):
        remote = Remote(f"http://127.0.0.1:{port}", server.token)
        answer = Uploads(remote).begin(UploadRequest(NAME.namespace, NAME.name, len(publication.pack)))
        with pack.open("rb") as file, pytest.raises(TooLarge, match=r"a proxy .*client_max_body_size"):
            Uploads(remote).put_pack(answer, file, len(publication.pack))
