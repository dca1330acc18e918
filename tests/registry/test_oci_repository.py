"""Test a registry that keeps its packs in a repository of an OCI registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachesvc.blobs.oci import OciBlobStore
from cachesvc.blobs.store import Unusable, prove
from cachesvc.cli.bundles import push_bundle
from cachesvc.cli.oci.transfer import SendOptions, send
from cachesvc.oci.distribution import Repository
from cachesvc.oci.image_layout import FolderTarget
from cachesvc.oci.reference import Reference
from cachesvc.settings import read_settings
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.queries.pull import pull
from cachesvc_client.wire.errors import InvalidRequest, NotFound, Unavailable
from cachesvc_client.wire.names import Name
from tests.e2e.registries import serve
from tests.oci.bundles import config, make_bundle
from tests.services.oci import oci_registry_server, skopeo


def test_packs_are_in_the_repository_and_reach_clients_through_the_registry(
    oci_registry: str, tmp_path: Path
) -> None:
    repository = f"{oci_registry}/team/packs"
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CACHESVC_SERVER_OCI_REPOSITORY": repository}
    with serve(tmp_path, variables=variables) as served:
        key = SigningKey.load(Path(served.signing_key))
        user: Config = config(tmp_path, key, url=served.url, token=served.token)
        bundle = make_bundle(tmp_path, key, "team/bert:v1")
        assert push_bundle(user, bundle).created
        [row] = pull(user, Name.parse("team/bert:v1"), tmp_path / "into", every=True)
        assert row.path.read_bytes() == bundle.read_bytes() and row.moved == row.bytes
        sent = send(user, "team/bert:v1", FolderTarget(tmp_path / "layout"), "v1", "", SendOptions())
        assert [one.name for one in sent] == ["team/bert:v1"]
    assert not list((tmp_path / "data").glob("blobs/objects/**/*")), "the data folder holds no pack"
    [tag] = [one for one in tags(repository) if one.startswith("packsS")]
    raw = skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{repository}:{tag}")
    assert json.loads(raw)["annotations"] == {"vnd.cachesvc.key": tag.replace("S", "/")}


def tags(repository: str) -> list[str]:
    return json.loads(skopeo("list-tags", "--tls-verify=false", f"docker://{repository}"))["Tags"]


def test_two_objects_with_the_same_bytes_are_deleted_one_by_one(oci_registry: str) -> None:
    store = OciBlobStore(f"{oci_registry}/team/same")
    for key in ("a", "b"):
        store.put(key, [b"the same"])
    store.delete("a")
    assert b"".join(store.open("b")) == b"the same"
    with pytest.raises(NotFound):
        store.open("a")


def test_what_others_put_into_the_repository_is_no_object(oci_registry: str, tmp_path: Path) -> None:
    store = OciBlobStore(f"{oci_registry}/team/mixed")
    store.put("mine", [b"x"])
    key = SigningKey.generate()
    other = Repository.of(Reference.parse(f"{oci_registry}/team/mixed"))
    send(config(tmp_path, key), str(make_bundle(tmp_path, key)), other, "theirs", "x", SendOptions())
    assert [facts.key for facts in store.list()] == ["mine"]
    with pytest.raises(NotFound):
        store.size("theirs")


def test_a_registry_that_deletes_nothing_is_unusable_and_says_what_to_set() -> None:
    with (
        oci_registry_server(deletes=False) as address,
        pytest.raises(Unusable, match=r"storage\.delete\.enabled"),
    ):
        prove(OciBlobStore(f"{address}/team/packs"))


def test_a_registry_that_is_away_is_unavailable_in_one_line() -> None:
    with pytest.raises(Unavailable, match=r"127.0.0.1:9: connection refused") as error:
        OciBlobStore("127.0.0.1:9/team/packs").check()
    assert not isinstance(error.value, Unusable) and "\n" not in str(error.value)


def test_a_key_that_no_tag_holds_is_refused() -> None:
    store = OciBlobStore("127.0.0.1:9/team/packs")
    with pytest.raises(ValueError, match="at most 128"):
        store.size("a" * 129)


@pytest.mark.parametrize(
    "repository", ["example.com/a:tag", "example.com", "a/b@sha256:" + "0" * 64, "example.com/A"]
)
def test_a_setting_that_names_no_repository_is_refused(repository: str) -> None:
    with pytest.raises(InvalidRequest, match=r"oci_repository|not a reference"):
        OciBlobStore(read_settings(oci_repository=repository).oci_repository)


def test_one_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="bucket, oci_repository: both are set"):
        read_settings(bucket="b", oci_repository="example.com/a")
    with pytest.raises(InvalidRequest, match="oci_plain_http: is set"):
        read_settings(oci_plain_http=True)
    settings = read_settings(database="postgresql://host/name", oci_repository="example.com/a", data=tmp_path)
    assert not settings.embedded
