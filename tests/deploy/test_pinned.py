"""Test that what others made is named by its digest, and that a new name by a tag is found."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.security.issuer import running_issuer
from tests.security.job_world import MAIN

from ..registry.registry_making import Server, ok
from .charts import ROOT
from .composite import as_runner

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
FILES = [
    ROOT / "Dockerfile",
    *(
        path
        for folder in (".ci", "deploy", "examples", ".github")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and not {"templates", "__pycache__"}.intersection(path.parts)
    ),
    *PAGES,
]
ACTION = re.compile(r"^\s*(?:- )?uses: *(\S+)(.*)$", re.MULTILINE)
IMAGE = re.compile(
    r"^\s*(?:- )?(?:image:|FROM) *(?:\{(?:reference|repository): *)?\"?([^\s\",}]+)", re.MULTILINE
)
OTHER_IMAGES = re.compile(
    r"^COPY --from=(\S+)|--mount=\S*\bfrom=([^\s,]+)|^# *syntax=(\S+)|^ARG \w+=([^\s:]+:[^\s/]\S*)"
    r"|^\s*container: *\"?([^\s\"{}]+)|\buses: *\"?docker://([^\s\"]+)",
    re.MULTILINE,
)
"""The other places where a file names an image."""
COMMAND = re.compile(r"\b(?:docker|podman|nerdctl|kubectl|crane|skopeo) (?:run|pull|create|copy)\b[^\n`]*")
COMMAND_IMAGE = re.compile(r"(?:docker://)?((?=[^:]*[a-z])[a-z0-9][\w./-]*:[A-Za-z0-9][\w.-]*)")
INSTALL = re.compile(r"pip install [^\n]*-r \S+")
OURS = re.compile(
    r"(?:cachesvc(?:-client)?|registry\.example\.com/[\w/-]+)(?::|$)|\$\{(?:REGISTRY_IMAGE|CLIENT|SERVICE)\b"
)
"""Images that the reader builds, or has."""
STAGE = re.compile(r"^FROM .* AS (\S+)", re.MULTILINE)
ACTIONS_OWN = "deploy/github/action/action.yml"
"""Installs the project of its own commit, which has no hashes."""


def movable(text: str, name: str) -> Iterator[str]:
    """Yield what a file names by something that can be moved to other bytes."""
    for action, rest in ACTION.findall(text):
        if action == "OWNER/cachesvc/deploy/github/action@COMMIT":
            continue
        if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) or not re.fullmatch(r" +# v[\d.]+", rest):
            yield f"{action}: name the commit, and its tag in a comment"
    stages = set(STAGE.findall(text))
    others = [image for images in OTHER_IMAGES.findall(text) for image in images if image]
    for command in COMMAND.findall(text):
        others += [found[1] for word in command.split() if (found := COMMAND_IMAGE.fullmatch(word))]
    for image in [*IMAGE.findall(text), *others]:
        digest = re.search(r"@sha256:[0-9a-f]{64}$", image)
        if not (digest or OURS.match(image) or image in stages):
            yield f"{image}: name the digest"
    for command in INSTALL.findall(text):
        if "--require-hashes" not in command and name != ACTIONS_OWN:
            yield f"{command}: not by hashes"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_named_by_what_can_be_moved(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    assert list(movable(path.read_text(), name)) == []


def test_every_requirement_is_named_by_its_hash() -> None:
    folder = ROOT / "requirements"
    files = sorted(folder.glob("*.txt"))
    assert [path.stem for path in files] == sorted(path.stem for path in folder.glob("*.in"))
    for path in files:
        lines = path.read_text().replace("\\\n", " ").splitlines()
        named = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
        assert named, path
        assert [line for line in named if "--hash=sha256:" not in line or "==" not in line] == [], path


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("deploy/github/warm.yml", "      - uses: actions/checkout@v4"),
        ("deploy/github/warm.yml", "        uses: actions/checkout@main  # v4.4.0"),
        ("deploy/github/warm.yml", f"      - uses: actions/checkout@{'a' * 40}"),
        ("deploy/github/warm.yml", f"      - uses: actions/checkout@{'a' * 39}  # v4.4.0"),
        ("deploy/github/warm.yml", "      - uses: OWNER/cachesvc/deploy/github/action@main"),
        ("deploy/compose/compose.yaml", "    image: redis:latest"),
        ("deploy/compose/compose.yaml", "    image: redis"),
        ("deploy/kubernetes/node-agent.yaml", "          image: busybox:1.36"),
        ("deploy/kubernetes/new.yaml", "          image: {reference: docker.io/other/bundles:1}"),
        ("deploy/gitlab/warm.yml", f"  image: python:3.12@sha256:{'a' * 63}"),
        ("Dockerfile", "FROM python:3.12-slim-bookworm AS base"),
        ("Dockerfile", "COPY --from=ghcr.io/astral-sh/uv:latest /uv /uv"),
        ("Dockerfile", "RUN --mount=type=bind,from=busybox:1.36,target=/b true"),
        ("Dockerfile", "# syntax=docker/dockerfile:1"),
        ("Dockerfile", "ARG BASE=python:3.13-slim"),
        ("deploy/github/warm.yml", "    container: python:3.12"),
        ("deploy/github/warm.yml", "      - uses: docker://alpine:3.20"),
        ("docs/new.md", "docker run --rm -p 80:80 -v data:/data redis:8 --appendonly yes"),
        ("docs/new.md", "kubectl run shell --image x && docker pull quay.io/other/image:v1"),
        ("deploy/gitlab/warm.yml", "    - python -I -m pip install -r requirements.txt"),
    ],
)
def test_a_new_name_that_can_be_moved_is_found(name: str, line: str) -> None:
    assert list(movable(f"{line}\n", name))


def test_the_login_of_the_workflow_s_tests_gets_a_token_that_reads(tmp_path: Path) -> None:
    """The step's own script, with bash, against a registry and an issuer as GitHub's."""
    jobs = yaml.safe_load((ROOT / "deploy/github/warm.yml").read_text())["jobs"]
    [script] = [step["run"] for step in jobs["test"]["steps"] if step.get("id") == "login"]
    env = {"CACHESVC_SERVER_PRIVATE_ADDRESSES": "true"}
    with running_issuer() as issuer, Server(tmp_path / "data", env=env).running() as server:
        issuer.add_key("one")
        rule = {"issuer": issuer.url, "audience": server.url, "claims": MAIN, "namespace": "team"}
        ok(server.api().http.post("/v1/publishers", json=rule | {"role": "read", "lane": "nothing"}))
        output = tmp_path / "output"
        variables = {"CACHESVC_URL": server.url, "GITHUB_OUTPUT": str(output), "NO_PROXY": "127.0.0.1"}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        environ = as_runner({**variables, **issuer.github()})
        result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        token = output.read_text().strip().removeprefix("token=")
        assert result.stdout == f"::add-mask::{token}\n"
        who = ok(server.api(token).http.get("/v1/whoami"))
        assert (who["role"], who["namespace"], who["lane"]) == ("read", "team", "nothing"), json.dumps(who)
