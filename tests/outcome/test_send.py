"""Test that the report of a start names no person, host or file."""

from __future__ import annotations

import getpass
import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.hooks.counters import Observation
from cachesvc_client.node import processes
from cachesvc_client.node.installed import InstalledRevision
from cachesvc_client.outcome.judge import Compared, KeyDifference, Report, RevisionUse
from cachesvc_client.outcome.send import node_id, request
from cachesvc_client.wire.codec import build, canonical, parse_json
from cachesvc_client.wire.compare import Difference
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.records import FileRecord, Frame, Manifest, PackRecord, Statement, Workload
from cachesvc_client.wire.names import Name, Target
from cachesvc_client.wire.requests.reports import (
    MAX_COUNT,
    MAX_REPORT_BYTES,
    MAX_SECONDS,
    KindWork,
    ReportRequest,
)

SOME = Digest.of(b"some")
SIGNER = SigningKey.generate().public
URL = "https://registry.example.org"


def installed(number: int) -> InstalledRevision:
    name = Name.parse("team/bert")
    manifest = Manifest(
        Statement(name.namespace, name.name, Target("t"), 1),
        PackRecord(SOME, 10),
        (Frame(0, 10, 10, SOME),),
        (FileRecord("inductor", "a/b", 1, SOME, 0, 0),),
        {},
        Workload(script=SOME),
    )
    return InstalledRevision(manifest, Digest.of(b"%d" % number), SIGNER, 1, 10)


def use(number: int, **more) -> RevisionUse:
    return RevisionUse("team/bert:latest", "t", str(Digest.of(b"%d" % number)), 3, 100, 2, **more)


def test_the_request_has_no_names_and_only_revisions_of_this_registry() -> None:
    report = Report(
        "inert",
        ("a reason with /home/me",),
        Observation(compilations=1),
        (use(1, state="inert"), use(2, state="inert"), use(3, state="inert")),
        kinds={"inductor": KindWork(1, 0, 2.5)},
        compared=Compared(
            differences=(
                Difference("operations", "silu x1", "gelu x1", False, "warm the model that is served"),
            ),
            key_differences=(KeyDifference("grad mode", "True", "False"),) * 2,
        ),
    )
    body = request(report, URL, [installed(1), installed(3)], {"torch": "2.13"})
    text = canonical(body).decode()
    assert [row.revision for row in body.revisions] == [Digest.of(b"1"), Digest.of(b"3")]
    assert body.why == ("grad mode", "operations"), "the component and the factor, not their values"
    assert "gelu" not in text
    for secret in (socket.gethostname(), platform.node(), str(Path.home()), "/home/me", str(os.getpid())):
        assert len(secret) < 4 or secret not in text
    user = getpass.getuser()
    assert user == "root" or user not in text
    assert build(ReportRequest, parse_json(text.encode(), limit=MAX_REPORT_BYTES, what="report")) == body


def test_odd_numbers_are_cut_to_the_limits_of_the_protocol() -> None:
    report = Report(
        "hit",
        (),
        Observation(),
        (use(1, state="hit", saved=-1e9),),
        kinds={"inductor": KindWork(MAX_COUNT, MAX_COUNT, MAX_SECONDS)},
    )
    [row] = request(report, URL, [installed(1)], {}).revisions
    assert row.saved == -MAX_SECONDS


def test_all_processes_of_a_node_have_one_id_for_each_registry() -> None:
    code = f"from cachesvc_client.outcome.send import node_id; print(node_id({URL!r}))"
    ids = {subprocess.check_output([sys.executable, "-c", code], text=True).strip() for _ in range(2)}
    assert ids == {node_id(URL)}
    assert node_id(URL) != node_id(URL + "/other")
    assert json.dumps(socket.gethostname()) not in node_id(URL)


def test_without_a_boot_id_the_node_id_is_random(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "BOOT_ID", tmp_path / "none")
    assert node_id.__wrapped__(URL) != node_id.__wrapped__(URL)
