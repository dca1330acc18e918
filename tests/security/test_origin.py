"""A publication holds what its process compiled, and nothing that somebody else put before its compilers."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey, strict_base64
from cachesvc_client.http.registry import Remote
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.ancestors import Ancestor
from cachesvc_client.wire.manifest.records import Manifest
from cachesvc_client.wire.names import Lane, Name, Namespace, Target
from cachesvc_client.wire.requests.protocol import ResolveRequest
from tests.e2e.harness import SCALAR
from tests.e2e.registries import Served, client, prepare, serve

from .attacker import Made, start
from .conftest import NAME

pytestmark = pytest.mark.compiles

LANE = "unproven"
PUBLISHES = {"CACHESVC_MODE": "readwrite", "CACHESVC_PUBLISH_AFTER": "0", "CACHESVC_LOG": "info"}
GRAPH = re.compile(r"inductor/(fxgraph/../|aotautograd/)")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("registry")
    prepare(folder, SigningKey.generate().text)
    with serve(folder) as served:
        yield served


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What another process compiled of the first function: its files, its folder and PyTorch's artifacts."""
    place = tmp_path_factory.mktemp("elsewhere")
    variables = {"CACHESVC_URL": "http://127.0.0.1:9", "TORCHINDUCTOR_CACHE_DIR": str(place / "cache")}
    said = service(place, "team-b/elsewhere", "compile:0", f"save:{place / 'artifacts'}", **variables)
    assert graphs(said["files"])
    return {**said, "artifacts": place / "artifacts"}


def service(place: Path, name: str, *steps: str, **variables: str) -> dict[str, Any]:
    """Do steps in a service on a node of its own."""
    place.mkdir(exist_ok=True)
    return start("publisher.py", name, *steps, place=place, **variables)


def graphs(files: list[str]) -> set[str]:
    return {file for file in files if GRAPH.match(file)}


def lane_signer(registry: Served, folder: Path) -> tuple[SigningKey, dict[str, str]]:
    """Make a signer of the namespace with a token for one lane, and the variables of who has both."""
    folder.mkdir(exist_ok=True)
    key = SigningKey.generate()
    key.save(folder / "lane.key")
    done = client("admin", "signers", "add", str(key.public), "-n", "team-b", **registry.variables)
    assert done.returncode == 0, done.stderr
    body = {"label": "lane", "role": "write", "namespace": "team-b", "lane": LANE}
    headers = {"Authorization": f"Bearer {registry.token}"}
    secret = httpx.post(f"{registry.url}/v1/tokens", json=body, headers=headers).json()["secret"]
    variables = {
        "CACHESVC_URL": registry.url,
        "CACHESVC_TOKEN": str(secret),
        "CACHESVC_TRUSTED_KEYS": str(key.public),
        "CACHESVC_SIGNING_KEY": str(folder / "lane.key"),
        "CACHESVC_LANE": LANE,
    }
    return key, variables


def push(made: Path, **variables: str) -> None:
    done = client("push", str(made), **variables)
    assert done.returncode == 0, done.stderr


def published(registry: Served, name: str, like: Manifest, lane: str | None = None) -> list[Manifest]:
    """Return what the registry offers under a name to a process such as that of ``like``."""
    parsed = Name.parse(name)
    request = ResolveRequest(
        parsed.namespace, parsed.name, like.fingerprint, lane=Lane(lane) if lane else None
    )
    with Remote(registry.url, registry.token) as remote:
        revisions = remote.resolve(request).revisions
    keys = [SigningKey.from_text(Path(registry.signing_key).read_text()).public]
    found = []
    for revision in revisions:
        try:
            found.append(
                check_envelope(revision.envelope_bytes, trusted=keys, expected=None, now=0.0).manifest
            )
        except Exception:  # noqa: BLE001 - signed by the lane's key
            continue
    return found


def files_of(manifests: list[Manifest]) -> set[str]:
    return {f"{file.kind}/{file.path}" for manifest in manifests for file in manifest.files}


def test_code_of_a_lane_comes_under_no_key_but_the_lanes(
    honest: Made, registry: Served, tmp_path: Path
) -> None:
    """The trunk's publisher reads the lane too, as the recipe has it, and compiles something beside it."""
    name = "team-b/row"
    key, attacker = lane_signer(registry, tmp_path / "attacker")
    lane = honest.signed(name, tmp_path / "lane.cachesvc", key, lane=LANE)
    push(lane.bundle, **attacker)
    victim = {**registry.publisher, **PUBLISHES, "CACHESVC_PUBLISH_AFTER": "60"}
    victim["CACHESVC_TRUSTED_KEYS"] = f"{registry.trust},{key.public}"
    place = tmp_path / "victim"
    said = service(place, name, "compile:0", "compile:1", "publish", **victim)
    assert said["revisions"], said
    [trunk] = published(registry, name, honest.manifest)
    foreign, held = files_of([lane.manifest]), files_of([trunk])
    assert graphs(list(foreign)) & set(said["files"]), "the lane's graph was used"
    assert graphs(list(held)) and not foreign & held, foreign & held
    assert trunk.statement.lane is None
    lane_revision = Digest.of(lane.manifest.encode())
    assert trunk.ancestors == (Ancestor(lane_revision, Namespace("team-b"), str(key.public)),)
    log = (place / "log").read_text()
    assert f"of lane {LANE} by key {key.public.short}" in log, log
    # Who has nothing else to publish publishes nothing, and says so.
    alone = service(tmp_path / "alone", name, "compile:0", "publish:other", **victim)
    assert not alone["revisions"] and "nothing is left to publish" in alone["errors"][0], alone


def test_what_a_node_keeps_for_itself_names_the_lane_whose_code_can_be_in_it(
    honest: Made, tmp_path: Path
) -> None:
    """What is published of the next start, which finds it there, is reached by the lane's withdrawal."""
    key, place = SigningKey.generate(), tmp_path / "node"
    lane = honest.signed("team-b/kept", tmp_path / "lane.cachesvc", key)
    variables = {"CACHESVC_BUNDLE": str(lane.bundle), "CACHESVC_TRUSTED_KEYS": str(key.public)}
    service(place, "team-b/kept", "compile:0", "compile:1", **variables)
    [own] = (place / "home/.cache/cachesvc/v1/own").iterdir()
    manifest = json.loads(strict_base64(json.loads(open_bundle(own)[0])["payload"]))
    assert [one["signer"] for one in manifest.get("ancestors", ())] == [str(key.public)], manifest.keys()


def test_nothing_that_was_made_of_a_graph_of_a_lane_is_in_the_trunk(
    honest: Made, registry: Served, tmp_path: Path
) -> None:
    """The lane has a compiled graph alone: the traced one that leads to it is made by the victim."""
    name = "team-b/hidden"
    key, attacker = lane_signer(registry, tmp_path / "attacker")
    manifest = honest.manifest
    draft = Draft(
        name=Name.parse(name),
        target=manifest.statement.target,
        fingerprint=manifest.fingerprint,
        workload=manifest.workload,
        scopes=manifest.scopes,
        lane=Lane(LANE),
    )
    untraced = [file for file in honest.files() if not file.path.startswith("aotautograd/")]
    build_bundle(untraced, draft, key, tmp_path / "lane.cachesvc")
    push(tmp_path / "lane.cachesvc", **attacker)
    victim = {**registry.publisher, **PUBLISHES, "CACHESVC_PUBLISH_AFTER": "60"}
    victim["CACHESVC_TRUSTED_KEYS"] = f"{registry.trust},{key.public}"
    said = service(tmp_path / "victim", name, "compile:0", "compile:1", "publish", **victim)
    assert said["revisions"], said
    [graph] = {file.path.split("/")[-2] for file in untraced if file.path.startswith("fxgraph/")}
    place = tmp_path / "pulled"
    pulled = client("pull", name, "--into", str(place), **SCALAR, **registry.variables)
    assert pulled.returncode == 0, pulled.stderr
    [bundle] = place.glob("*.cachesvc")
    made = Made(bundle, SigningKey.load(Path(registry.signing_key)))
    assert graphs(said["files"]) - graphs(list(files_of([made.manifest]))), "something was left out"
    assert graphs(list(files_of([made.manifest]))), "what was compiled here is published"
    assert [file.path for file in made.files() if graph.encode() in bytes(file.data)] == []


def test_pytorchs_own_artifacts_are_not_signed(
    honest: Made, registry: Served, tmp_path: Path, elsewhere: dict[str, Any]
) -> None:
    name, victim = "team-b/artifacts", {**registry.publisher, **PUBLISHES}
    steps = (f"load:{elsewhere['artifacts']}", "compile:0", "compile:1", "publish")
    said = service(tmp_path / "victim", name, *steps, **victim)
    _nothing_of(elsewhere, published(registry, name, honest.manifest), said)


def test_what_is_planted_while_a_service_runs_is_not_signed(
    honest: Made, registry: Served, tmp_path: Path, elsewhere: dict[str, Any]
) -> None:
    name, victim = "team-b/planted", {**registry.publisher, **PUBLISHES}
    steps = (f"plant:{elsewhere['folder']}", "compile:0", "compile:1", "publish")
    said = service(tmp_path / "victim", name, *steps, **victim)
    _nothing_of(elsewhere, published(registry, name, honest.manifest), said)


def test_what_lay_in_a_folder_of_the_users_is_not_signed(
    honest: Made, registry: Served, tmp_path: Path, elsewhere: dict[str, Any]
) -> None:
    name, victim = "team-b/named", {**registry.publisher, **PUBLISHES}
    shutil.copytree(elsewhere["folder"], tmp_path / "cache")
    named = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    said = service(tmp_path / "victim", name, "compile:0", "compile:1", "publish", **victim, **named)
    _nothing_of(elsewhere, published(registry, name, honest.manifest), said)


def test_what_another_process_puts_into_a_shared_folder_is_not_signed(
    honest: Made, registry: Served, tmp_path: Path
) -> None:
    """No driver says who made an entry: those of a lane, which another service restored meanwhile into the
    folder that the user named for both, were signed for the trunk."""
    entry, key, bundle = "0/1/6ccdff9c1448c4", SigningKey.generate(), tmp_path / "lane.cachesvc"
    cache = {"CUDA_CACHE_PATH": str(tmp_path / "cuda")}
    draft = Draft(
        name=Name.parse("team-b/beside"),
        target=Target("one"),
        fingerprint=honest.manifest.fingerprint,
        workload=honest.manifest.workload,
        scopes=("host",),
    )
    build_bundle([SourceFile("cuda", entry, b"of a lane")], draft, key, bundle)
    bundle.with_suffix(".pub").write_text(str(key.public))
    name, victim = "team-b/shared", {**registry.publisher, **PUBLISHES, **cache}
    said = service(tmp_path / "victim", name, "compile:1", f"beside:{bundle}", "publish", **victim)
    assert (tmp_path / "cuda" / entry).read_bytes() == b"of a lane"
    held = files_of(published(registry, name, honest.manifest))
    assert said["revisions"] and graphs(list(held)) and f"cuda/{entry}" not in held
    assert "1 file of unknown origin" in (tmp_path / "victim/log").read_text()


def _nothing_of(elsewhere: dict[str, Any], manifests: list[Manifest], said: dict[str, Any]) -> None:
    assert said["revisions"], said
    held = files_of(manifests)
    assert graphs(list(held)), "what was compiled here is published"
    assert not held & graphs(elsewhere["files"])


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_what_is_compiled_in_a_folder_that_others_can_write_is_not_signed(
    registry: Served, tmp_path: Path, mode: int
) -> None:
    # Not in pytest's folders: these are shut, so that nobody reaches what is in them.
    with tempfile.TemporaryDirectory(prefix="open-") as above:
        Path(above).chmod(0o755)
        cache = Path(above, "cache")
        cache.mkdir()
        cache.chmod(mode)
        victim = {**registry.publisher, **PUBLISHES, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
        said = service(tmp_path / "victim", "team-b/open", "compile:1", "publish", **victim)
    assert said["compilations"] > 0 and not said["revisions"]
    assert f"whose folder others can write: {cache}" in said["errors"][0], said


def test_what_another_key_signed_is_not_signed_again_over_it(
    honest: Made, registry: Served, tmp_path: Path
) -> None:
    """A service publishes by itself over the head of its entry, whose key is revoked later."""
    name = "team-b/head"
    _, first = lane_signer(registry, tmp_path / "first")
    by_itself = {**PUBLISHES, "CACHESVC_PUBLISH_AFTER": "5"}
    said = service(tmp_path / "one", name, "compile:0", "quiet", **first, **by_itself)
    theirs = set(said["files"])
    second = {**registry.publisher, **by_itself, "CACHESVC_LANE": LANE, "CACHESVC_WAIT": "compile"}
    second["CACHESVC_TRUSTED_KEYS"] = f"{registry.trust},{first['CACHESVC_TRUSTED_KEYS']}"
    said = service(tmp_path / "two", name, "compile:0", "compile:1", "quiet", **second)
    assert graphs(list(theirs)) <= set(said["files"]), "the other's graph was used"
    held = files_of(published(registry, name, honest.manifest, LANE))
    assert graphs(list(held)) and not held & theirs


def test_what_lies_in_a_private_folder_at_the_start_is_not_used(tmp_path: Path) -> None:
    variables = {"CACHESVC_URL": "http://127.0.0.1:9", "CACHESVC_KEEP_OWN": "0", "CACHESVC_LOG": "info"}
    said = service(tmp_path, NAME, "compile:0", **variables)
    again = service(tmp_path, NAME, "compile:0", **variables)
    assert again["compilations"] == said["compilations"] > 0
    assert again["folder"] != said["folder"]
