"""Test that the measurement of the web page asks for every page that there is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from benchmarks.hosts import ROOT
from cachesvc.ui.routes import ROUTERS

NOT_MEASURED = {"/ui/static/{name}", "/ui/revisions/{revision}", "/ui/{path:path}", "/ui/login/callback"}
"""A file, redirects, and the page of what is not there."""


@pytest.mark.servers
def test_every_page_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.web_pages", "--entries", "400", "--rounds", "1"]
    result = subprocess.run(
        [*command, "--json", str(tmp_path / "pages.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode in (0, 1), result.stderr  # 1: a page was slow, as this machine may be
    report = json.loads((tmp_path / "pages.json").read_text())
    assert report["entries"] == 400 and len(report["shapes"]) == 2
    addresses = [row["address"].partition("?")[0] for rows in report["shapes"].values() for row in rows]
    assert all(row["median_ms"] > 0 for rows in report["shapes"].values() for row in rows)
    digest = "sha256:" + "0" * 64
    pages = {
        route.path: route
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and "GET" in route.methods and route.path not in NOT_MEASURED
    }
    missing = [
        path
        for path, route in pages.items()
        if not any(route.path_regex.fullmatch(one.replace("sha256:…", digest)) for one in addresses)
    ]
    assert missing == []
