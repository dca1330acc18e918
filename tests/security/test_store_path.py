"""Another user of the node, who may write above the node store or was there first: the service says so in one
line and uses a store of its own."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from registry_making import make

from benchmarks.hosts import QUICK
from cachesvc_client.bundle.file import bundle_head
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.environment.detect import detect
from cachesvc_client.node.path_owners import refuse_foreign_path
from cachesvc_client.wire.errors import Untrusted
from tests.mounts import bind, tmpfs

from .attacker import start

STRANGER = 4242
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@pytest.fixture
def attach(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Starts a service that restores a bundle, on a store at this path."""
    key, bundle = SigningKey.generate(), tmp_path / "a.cachesvc"
    made = make(key, path="aa/c" + 24 * "a" + ".picked_kernel", fingerprint=dict(detect()))
    bundle.write_bytes(bundle_head(made.envelope) + made.pack)
    place = tmp_path / "node"
    place.mkdir()

    def run(store: Path, **variables: str) -> dict[str, Any]:
        return start(
            "attached.py",
            json.dumps({"bundle": str(bundle)}),
            place=place,
            CACHESVC_TRUSTED_KEYS=f"*={key.public}",
            CACHESVC_STORE=str(store),
            **QUICK,
            **variables,
        )

    return run


def refused(answer: dict[str, Any], folder: Path) -> bool:
    """Whether a start said in one line that it does not trust this folder, and used another store."""
    said = answer["problems"][0]
    used = all(not path.startswith(f"{folder}/") for path in answer["folders"].values())
    return used and said.startswith("CACHESVC_STORE is not used: node store") and str(folder) in said


def test_a_user_who_may_write_above_the_store_replaces_nothing(
    attach: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    above = tmp_path / "above"
    above.mkdir()
    assert attach(above / "store")["installed"], "it works before"
    above.chmod(0o777)
    for store in (above / "store", above / "store/deeper", above):
        answer = attach(store)
        assert refused(answer, above), answer
        assert "chmod go-w" in answer["problems"][0], answer
    above.chmod(0o1777)
    assert attach(above / "store")["installed"], "in a sticky folder nobody renames what is not theirs"


@needs_root
def test_a_user_who_made_the_folder_or_the_link_first_replaces_nothing(
    attach: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, STRANGER, STRANGER)
    for store in (theirs, theirs / "store"):
        answer = attach(store)
        assert refused(answer, theirs) and f"user {STRANGER}" in answer["problems"][0], answer
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.mkdir(mode=0o700)
    link.symlink_to(mine)
    assert attach(link / "store")["installed"], "a link of this user is this user's decision"
    os.lchown(link, STRANGER, STRANGER)
    assert refused(attach(link / "store"), link)


def test_a_link_leads_where_another_user_may_write_and_replaces_nothing(
    attach: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    shared, link = tmp_path / "shared", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o777)
    link.symlink_to("shared/store")
    assert refused(attach(link), shared)
    assert refused(attach(link, KUBERNETES_SERVICE_HOST="10.0.0.1"), shared), "no volume of a pod"
    deep = tmp_path / "deep"
    (deep / "below").mkdir(parents=True)
    (deep / "out").symlink_to("../shared/store")
    assert refused(attach(deep / "below/../out/er"), shared), "two dots lead where the kernel goes"


@pytest.fixture
def seen_by_all() -> Iterator[Path]:
    """A folder that other users reach, as they do not reach pytest's own."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def replace(above: Path, group: int = STRANGER) -> bool:
    """Whether another user can put an own folder into the place of the store below ``above``."""
    words = 'mv "$1/store" "$1/aside" && mkdir "$1/store" && rmdir "$1/store" && mv "$1/aside" "$1/store"'
    drop = ["setpriv", f"--reuid={STRANGER}", f"--regid={group}", "--clear-groups"]
    return subprocess.run([*drop, "sh", "-c", words, "sh", str(above)], capture_output=True).returncode == 0


@needs_root
@pytest.mark.parametrize("mode", [0o775, 0o2775, 0o770, 0o730])
def test_a_user_whose_first_group_is_the_victim_s_replaces_nothing(
    attach: Callable[..., dict[str, Any]], seen_by_all: Path, mode: int
) -> None:
    """No list of a group's members names a user who has it as the first one."""
    above = seen_by_all / "home"
    (above / "store").mkdir(parents=True)
    above.chmod(mode)
    assert replace(above, group=os.getegid()), "it can be done"
    for store in (above / "store", above):
        answer = attach(store)
        assert refused(answer, above) and f"chmod go-w {above}" in answer["problems"][0], answer
    above.chmod(mode & ~0o020)
    assert not replace(above, group=os.getegid()) and attach(above / "store")["installed"]


@needs_root
def test_a_user_who_shares_a_volume_of_the_host_replaces_nothing(
    attach: Callable[..., dict[str, Any]], seen_by_all: Path
) -> None:
    """In a container the store lies in a volume that another uid of the host may write."""
    host, volume, memory = (seen_by_all / name for name in ("host", "volume", "memory"))
    host.mkdir()
    in_a_pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    with ExitStack() as mounted:
        mounted.enter_context(bind(host, volume))
        mounted.enter_context(tmpfs(memory, "mode=0777"))
        for above in (volume, memory):
            (above / "store").mkdir(mode=0o700)
            for mode, owner in ((0o777, 0), (0o2777, 0), (0o775, 0), (0o755, STRANGER), (0o1777, STRANGER)):
                above.chmod(mode)
                os.chown(above, owner, STRANGER)
                assert replace(above), f"it can be done with {mode:o}"
                assert refused(attach(above / "store", **in_a_pod), above), f"{mode:o}"
            os.chown(above, 0, 0)
            above.chmod(0o1777)
            assert not replace(above) and attach(above / "store", **in_a_pod)["installed"]
        os.chown(volume, 0, 0)
        volume.chmod(0o700)
        assert attach(volume, **in_a_pod)["installed"], "a folder for each uid, as the recipe says"


POD, OTHER_POD = "0f1e2d3c-0000-4000-8000-00000000000a", "0f1e2d3c-0000-4000-8000-00000000000b"


@needs_root
def test_a_volume_that_looks_like_a_pod_s_own_is_none(
    attach: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """An `emptyDir` of this pod is used, open as kubelet makes it: its containers alone have it."""
    pods, volume, own = tmp_path / "kubelet/pods", tmp_path / "cache", tmp_path / "hosts"

    def empty_dir(pod: str) -> Path:
        folder = pods / pod / "volumes/kubernetes.io~empty-dir/cache"
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        (pods / pod / "etc-hosts").touch()
        return folder

    mine, theirs = empty_dir(POD), empty_dir(OTHER_POD)
    with bind(mine, volume):
        assert refused(attach(volume / "store"), volume), "nothing says that this is the pod"
    with bind(pods / POD / "etc-hosts", own):
        assert refused(attach(mine / "store"), mine), "a path like this that is no mount"
        with bind(mine, volume):
            assert attach(volume / "store")["installed"]
            assert attach(volume)["installed"]
            (volume / "open").mkdir()
            (volume / "open").chmod(0o777)
            assert refused(attach(volume / "open/store"), volume / "open")
        with bind(mine.parent, volume):
            assert refused(attach(volume / "cache/store"), volume / "cache"), "above the volume"
        with bind(theirs, volume):
            assert refused(attach(volume / "store"), volume), "another pod's"


@needs_root
def test_a_user_whom_a_list_of_rights_names_replaces_nothing(seen_by_all: Path) -> None:
    """An ACL lets one user write; the mode shows it as a right of the group. Nor does a link of another's
    process in /proc lead to a store."""
    above = seen_by_all / "above"
    (above / "store").mkdir(parents=True)
    rows = [(1, 7, -1), (2, 7, STRANGER), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
    rights = b"".join(struct.pack("<HHI", kind, bits, who & 0xFFFFFFFF) for kind, bits, who in rows)
    try:
        os.setxattr(above, "system.posix_acl_access", struct.pack("<I", 2) + rights)
    except OSError:
        pytest.skip("needs a file system with ACLs")
    assert replace(above), "it can be done"
    with pytest.raises(Untrusted, match=f"others may write to {above}"):
        refuse_foreign_path(above / "store")
    drop = ["setpriv", f"--reuid={STRANGER}", "--clear-groups", "sleep", "60"]
    with subprocess.Popen(drop, cwd=above) as theirs:
        try:
            while Path(f"/proc/{theirs.pid}").stat().st_uid != STRANGER:
                time.sleep(0.01)
            with pytest.raises(Untrusted, match=f"belongs to user {STRANGER}"):
                refuse_foreign_path(Path(f"/proc/{theirs.pid}/cwd/store"))
        finally:
            theirs.kill()
