"""Test starts under a name whose target got a newer model: by real processes."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.http.registry import Remote
from cachesvc_client.publication.build_bundle import next_sequence
from cachesvc_client.publication.publish_bundle import delivery
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.names import Target

from .conftest import NAME, Built
from .harness import SCALAR, run
from .registries import Served, prepare, serve

pytestmark = pytest.mark.compiles


def _publish(registry: Served, small: Built, bundle: Path, model: str) -> str:
    """Publish a bundle as the newest model of the one target, and return its revision."""
    envelope, offset = open_bundle(bundle)
    manifest = check_envelope(envelope, trusted=[small.key.public], expected=None, now=0).manifest
    sequence = next_sequence(manifest.statement.sequence)
    statement = dataclasses.replace(manifest.statement, target=Target("model/default"), sequence=sequence)
    workload = dataclasses.replace(manifest.workload, model=Digest.of(model.encode()), script=None)
    manifest = dataclasses.replace(manifest, statement=statement, workload=workload)
    pack = io.BytesIO(bundle.read_bytes()[offset:])
    with Remote(registry.url, registry.token) as remote, delivery(remote, manifest, pack, 0) as commit:
        return str(commit(small.key.sign(manifest), None).revision)


def test_a_new_model_is_restored_alone_and_a_rollback_still_hits(tmp_path: Path, small: Built) -> None:
    bundle = tmp_path / "other" / "other.cachesvc"
    bundle.parent.mkdir()
    words = (str(bundle), str(small.key_file), NAME, "other")
    built = run("build.py", *words, place=bundle.parent, **SCALAR)
    assert built.code == 0, built.err[-4000:]
    prepare(tmp_path / "registry", small.key.text)
    with serve(tmp_path / "registry") as registry:

        def start(function: str, host: str) -> tuple[str, bool, list[str], list[str]]:
            """Return the outcome, whether it is right, and the revisions at the start and in use."""
            place = tmp_path / host
            place.mkdir(exist_ok=True)
            words = (f"name={NAME}", f"functions={function}")
            variables = {**SCALAR, **registry.variables}
            answer = run("many_entries.py", *words, place=place, prepared=True, **variables).answer
            return answer["state"], answer["right"], answer["revisions_at_start"], answer["revisions_used"]

        old = _publish(registry, small, small.bundle, "old")
        assert start("small", "old-host") == ("hit", True, [old], [old])
        new = _publish(registry, small, bundle, "new")
        assert start("other", "new-host") == ("hit", True, [new], [new])
        # Rolled back on a host that never ran it: its compiler's key finds it, and the next start restores
        # it.
        assert start("small", "new-host") == ("hit", True, [new], [old])
        assert start("small", "new-host") == ("hit", True, [new, old], [old])
        # Rolled forward: once what the program used the last time is there too.
        assert start("other", "new-host") == ("hit", True, [new, old], [new])
        assert start("other", "new-host") == ("hit", True, [new], [new])
