"""Test ``oci push``, ``pull``, ``export`` and ``import`` over a real registry, with what skopeo and oras
make of it.

Each test uses a repository of its own, so that one registry serves all."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.codec import canonical
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.manifest.provenance import Provenance
from tests.oci.bundles import FACTS, make_bundle
from tests.services.oci import oci_registry_server, skopeo

oras = pytest.importorskip("oras.client", reason="oras is not installed: make venv")

Command = Callable[..., tuple[int, str, str]]
HTPASSWD = "ci:$2b$05$rqM8JwQ.sBd7Acy7TomwJ.4JdA28EBrMqxd3ZVEXejXg0LQkgFrwu\n"
"""The password is `secret`."""
INSECURE = ("--src-tls-verify=false", "--dest-tls-verify=false")


@pytest.fixture
def at(oci_registry: str, request: pytest.FixtureRequest) -> str:
    """Return a repository of this test alone."""
    name = request.node.name.partition("[")[0].replace("_", "-")
    return f"{oci_registry}/tests/{name[:80].rstrip('-')}"


@pytest.fixture
def signing(registry: Any) -> dict[str, str]:
    """Return the variables of a user who has the key of the bundles."""
    return {"CACHESVC_SIGNING_KEY": str(registry.key_path)}


def ok(result: tuple[int, str, str]) -> str:
    assert (result[0], result[2]) == (0, ""), result
    return result[1]


def manifest_at(reference: str) -> dict[str, Any]:
    return json.loads(skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{reference}"))


def test_a_bundle_goes_to_a_registry_and_comes_back(
    command: Command, bundle, tmp_path: Path, at: str
) -> None:
    path = bundle("team/oci:v1")
    [row] = json.loads(ok(command("oci", "push", path, f"{at}:v1", "--json")))["rows"]
    assert row["name"] == "team/oci:v1" and row["signature"] == "none: its signer's key is not here"
    assert ok(command("oci", "push", path, f"{at}:v1")).split()[-1] == row["digest"]
    value = manifest_at(f"{at}:v1")
    assert value["artifactType"] == "application/vnd.cachesvc.bundle.v1"
    assert [layer["mediaType"] for layer in value["layers"]] == [
        "application/vnd.cachesvc.pack.v1",
        "application/vnd.dsse.envelope.v1+json",
    ]
    for reference in (f"{at}:v1", f"{at}@{row['digest']}"):
        into = tmp_path / Digest.of(reference.encode()).hex[:8]
        [pulled] = json.loads(ok(command("oci", "pull", reference, into, "--json")))["rows"]
        assert Path(pulled["path"]).read_bytes() == path.read_bytes()
        [again] = json.loads(ok(command("oci", "pull", reference, into, "--json")))["rows"]
        assert (pulled["moved_bytes"], again["moved_bytes"]) == (pulled["bytes"], 0)
    status, out, err = command("oci", "pull", f"{at}:v2", tmp_path / "x")
    assert (status, out) == (4, "") and "it is not there" in err
    status, _, err = command(
        "oci", "pull", f"{at}:v1", tmp_path / "x", CACHESVC_TRUSTED_KEYS=SigningKey.generate().public
    )
    assert status == 7 and "not trusted" in err and not (tmp_path / "x").exists()


def test_a_name_of_the_registry_goes_with_all_its_entries(
    command: Command, bundle, tmp_path: Path, at: str, signing: dict[str, str]
) -> None:
    for target in ("bert/bf16", "bert/fp32"):
        ok(command("push", bundle("team/all:v1", target, content=target.encode(), torch="2.8.0")))
    rows = json.loads(ok(command("oci", "push", "team/all:v1", f"{at}:v1", "--json", **signing)))["rows"]
    assert {row["target"] for row in rows} == {"bert/bf16", "bert/fp32"}
    assert manifest_at(f"{at}:v1")["artifactType"] == "application/vnd.cachesvc.bundle.v1"
    out = ok(command("oci", "pull", f"{at}:v1", tmp_path / "into", "--name", "team/all:v1"))
    assert "bert/bf16" in out and len(list((tmp_path / "into").iterdir())) == 2
    status, _, err = command("oci", "pull", f"{at}:v1", tmp_path / "other", "--name", "team/other:v1")
    assert status == 7 and "wanted: team/other" in err
    status, _, err = command("oci", "push", "team/absent", f"{at}:v1")
    assert status == 4, err


def test_skopeo_copies_what_was_written_and_what_it_wrote_is_read(
    command: Command, bundle, tmp_path: Path, at: str
) -> None:
    path = bundle("team/skopeo:v1")
    layout, archive = tmp_path / "layout", tmp_path / "archive.tar"
    ok(command("oci", "export", path, layout, "--tag", "v1"))
    skopeo("copy", *INSECURE, f"oci:{layout}:v1", f"docker://{at}:copied")
    skopeo("copy", *INSECURE, f"docker://{at}:copied", f"oci-archive:{archive}:v1")
    skopeo("copy", *INSECURE, f"docker://{at}:copied", f"oci:{tmp_path / 'second'}:v1")
    assert manifest_at(f"{at}:copied") == json.loads(skopeo("inspect", "--raw", f"oci:{layout}:v1"))
    ok(command("oci", "pull", f"{at}:copied", tmp_path / "one.cachesvc"))
    ok(command("oci", "import", archive, tmp_path / "two.cachesvc"))
    ok(command("oci", "import", tmp_path / "second", tmp_path / "three.cachesvc", "--tag", "v1"))
    for name in ("one", "two", "three"):
        assert (tmp_path / f"{name}.cachesvc").read_bytes() == path.read_bytes()


def test_oras_reads_what_was_written_and_what_it_wrote_is_read(
    command: Command, bundle, tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bundle("team/oras:v1", content=b"kernel" * 5000)
    client = oras.OrasClient(insecure=True)
    ok(command("oci", "push", path, f"{at}:v1"))
    [pack, *_] = client.pull(target=f"{at}:v1", outdir=str(tmp_path / "oras"))
    envelope, offset = open_bundle(path)
    assert Path(pack).read_bytes() == path.read_bytes()[offset:]
    monkeypatch.chdir(tmp_path)
    Path("pack").write_bytes(path.read_bytes()[offset:])
    Path("envelope").write_bytes(envelope)
    Path("config").write_bytes(b"{}")
    client.push(
        target=f"{at}:by-oras",
        files=["pack:application/vnd.cachesvc.pack.v1", "envelope:application/vnd.dsse.envelope.v1+json"],
        manifest_config="config:application/vnd.cachesvc.bundle.v1",
        quiet=True,
    )
    ok(command("oci", "pull", f"{at}:by-oras", tmp_path / "back.cachesvc"))
    assert (tmp_path / "back.cachesvc").read_bytes() == path.read_bytes()


def attached(at: str, digest: str, suffix: str) -> tuple[dict[str, Any], bytes]:
    """Return the layer's descriptor and content of what cosign looks for beside a manifest."""
    tag = f"{digest.replace(':', '-')}.{suffix}"
    [layer] = manifest_at(f"{at}:{tag}")["layers"]
    client = oras.OrasClient(insecure=True)
    return layer, client.get_blob(client.get_container(f"{at}:{tag}"), layer["digest"]).content


def test_signature_and_provenance_are_those_that_cosign_reads(
    command: Command, bundle, tmp_path: Path, at: str, signing: dict[str, str], registry: Any
) -> None:
    built = Provenance("cachesvc:local", {"spec": {"name": "warm.toml"}})
    path = bundle("team/signed:v1", provenance=built)
    [row] = json.loads(ok(command("oci", "push", path, f"{at}:v1", "--json", **signing)))["rows"]
    assert row["signature"] == registry.key.public.short
    layer, payload = attached(at, row["digest"], "sig")
    assert json.loads(payload)["critical"]["image"]["docker-manifest-digest"] == row["digest"]
    pem, data, signature = tmp_path / "cosign.pub", tmp_path / "payload", tmp_path / "signature"
    pem.write_text(ok(command("oci", "cosign-key", registry.key.public)))
    data.write_bytes(payload)
    signature.write_bytes(base64.b64decode(layer["annotations"]["dev.cosignproject.cosign/signature"]))
    openssl = [
        "openssl",
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        pem,
        "-rawin",
        "-in",
        data,
        "-sigfile",
        signature,
    ]
    assert subprocess.run(openssl, capture_output=True, timeout=60).returncode == 0
    data.write_bytes(payload + b" ")
    assert subprocess.run(openssl, capture_output=True, timeout=60).returncode != 0
    layer, envelope = attached(at, row["digest"], "att")
    assert layer["annotations"]["predicateType"] == "https://slsa.dev/provenance/v1"
    value = json.loads(envelope)
    assert value["payloadType"] == "application/vnd.in-toto+json"
    statement = json.loads(base64.b64decode(value["payload"]))
    digests = [subject["digest"]["sha256"] for subject in statement["subject"]]
    assert digests[0] == row["digest"][7:] and len(digests) == 2
    assert statement["predicate"]["runDetails"]["builder"]["id"] == "cachesvc:local"
    tag = manifest_at(f"{at}:{row['digest'].replace(':', '-')}")
    kinds = {one["artifactType"] for one in tag["manifests"]}
    assert kinds == {
        "application/vnd.cachesvc.manifest.v1+dsse",
        "application/vnd.dev.cosign.artifact.sig.v1+json",
        "application/vnd.in-toto+json",
    }


def test_an_image_of_mcv_goes_and_comes_also_as_docker_writes_it(
    command: Command, tmp_path: Path, at: str, registry: Any, signing: dict[str, str]
) -> None:
    path = make_bundle(tmp_path, registry.key)
    ok(command("oci", "push", path, f"{at}:v1", "--format", "mcv", "--kserve", **signing))
    seen = json.loads(skopeo("inspect", "--tls-verify=false", f"docker://{at}:v1"))
    assert seen["Labels"]["cache.triton.image/entry-count"] == "1"
    assert seen["Labels"]["io.kserve.km/cache-type"] == "triton"
    skopeo("copy", *INSECURE, "--format", "v2s2", f"docker://{at}:v1", f"docker://{at}:docker")
    assert "docker" in manifest_at(f"{at}:docker")["layers"][0]["mediaType"]
    here = tmp_path / "here.json"
    here.write_bytes(canonical(FACTS))
    mine = ("--format", "mcv", "--name", "team/mcv:v1", "--target", "t/mcv", "--here", here)
    for tag in ("v1", "docker"):
        status, _, err = command("oci", "pull", f"{at}:{tag}", tmp_path / tag, *mine, **signing)
        assert (
            status == 2
            and "nobody whom you trust has signed" in err
            and "--signing-key FILE, or --sign" in err
        )
        assert not (tmp_path / tag).exists()
        out = ok(
            command("oci", "pull", f"{at}:{tag}", tmp_path / tag, *mine, "--signing-key", registry.key_path)
        )
        [made] = (tmp_path / tag).iterdir()
        assert "3 files" in out and "trusted" in ok(command("verify", made))
        ok(command("oci", "pull", f"{at}:{tag}", tmp_path / tag, *mine, "--sign", **signing))
    status, _, err = command("oci", "pull", f"{at}:v1", tmp_path / "x")
    assert status == 2 and "an image of MCV needs --format mcv" in err
    status, _, err = command(
        "oci", "pull", f"{at}:v1", tmp_path / "x", "--format", "mcv", "--sign", **signing
    )
    assert status == 2 and "give --name NAME and --target TARGET" in err


def test_an_image_for_a_volume_holds_the_bundle_files(
    command: Command, bundle, tmp_path: Path, at: str
) -> None:
    path = bundle("team/volume:v1")
    ok(command("oci", "push", path, f"{at}:v1", "--format", "volume"))
    skopeo("copy", *INSECURE, f"docker://{at}:v1", f"dir:{tmp_path / 'copied'}")
    value = json.loads((tmp_path / "copied" / "manifest.json").read_text())
    [layer] = value["layers"]
    (tmp_path / "bundles").mkdir()
    subprocess.run(
        ["tar", "-xf", tmp_path / "copied" / layer["digest"][7:], "-C", tmp_path / "bundles"],
        check=True,
        timeout=60,
    )
    [file] = (tmp_path / "bundles").iterdir()
    assert file.read_bytes() == path.read_bytes() and "trusted" in ok(command("verify", file))


@contextmanager
def guarded(folder: Path) -> Iterator[str]:
    """Start a registry that only the user `ci` may use."""
    folder.mkdir()
    (folder / "htpasswd").write_text(HTPASSWD)
    auth = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
    with oci_registry_server(auth=auth) as address:
        yield address


def test_credentials_come_from_dockers_file_or_standard_input(
    command: Command, bundle, tmp_path: Path, oci_registry: str
) -> None:
    del oci_registry  # marks the test
    path, docker = bundle("team/guarded:v1"), tmp_path / "docker"
    docker.mkdir()
    with guarded(tmp_path / "auth") as address:
        push = ("oci", "push", path, f"{address}/a:v1")
        status, _, err = command(*push, DOCKER_CONFIG=str(docker))
        assert status == 3 and f"docker login {address}, or --username NAME --password-stdin" in err
        for password, expected in (("wrong", 3), ("secret", 0)):
            auth = base64.b64encode(f"ci:{password}".encode()).decode()
            (docker / "config.json").write_text(json.dumps({"auths": {address: {"auth": auth}}}))
            status, _, err = command(*push, DOCKER_CONFIG=str(docker))
            assert status == expected and password not in err, err
        pull = ("oci", "pull", f"{address}/a:v1", tmp_path / "into", "--username", "ci", "--password-stdin")
        assert command(*pull, typed="secret\n")[0] == 0
        assert command(*pull, typed="wrong\n")[0] == 3
        status, _, err = command(*pull[:-1])
        assert status == 2 and "one is given without the other" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("push", "b.cachesvc", "nowhere"), "expected host[:port]/repository"),
        (("push", "b.cachesvc", "127.0.0.1:9/a@sha256:" + "0" * 64), "a digest cannot be written to"),
        (("push", "b.cachesvc", "127.0.0.1:9/a", "--kserve"), "only an image of MCV has them"),
        (("pull", "127.0.0.1:9/a", "into", "--sign"), "a bundle is signed already"),
        (("export", "b.cachesvc", "out", "--tag", "no tag"), "not a tag"),
        (("cosign-key", "ed25519:abc"), "give what keygen printed"),
    ],
)
def test_bad_usage_is_one_line_and_needs_no_registry(
    command: Command, words: tuple[str, ...], expected: str
) -> None:
    status, out, err = command("oci", *words)
    assert (status, out) == (2, "") and expected in err and err.count("\n") == 1, err
