"""Make packs, manifests and envelopes for the tests of this folder."""

import contextlib
import json
import os
import signal
from pathlib import Path

from cachesvc_client.bundle.pack import SourceFile, write_pack
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.kinds.rules import FileRule, KindRules
from cachesvc_client.node.safe_files import PRIVATE
from cachesvc_client.wire.manifest.records import PAYLOAD_TYPE, Manifest, Statement, Workload
from cachesvc_client.wire.names import Namespace, ShortName, Target

KEY = SigningKey.from_text("ed25519-private:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=")
FILES = (
    SourceFile("inductor", "ab/cab.so", b"\x7fELF" + bytes(range(256)) * 40, 0o755),
    SourceFile("inductor", "cd/ccd.py", b"def call():\n    return 1\n" * 30),
    SourceFile("inductor", "cd/twin.py", b"def call():\n    return 1\n" * 30, ranks=(1,)),
    SourceFile("inductor", "cd/empty.py", b""),
    SourceFile("triton", "K1/k.cubin", b"cubin" * 900),
    SourceFile("triton", "K1/__grp__k.json", b'{"child_paths":{"k.cubin":"@ROOT@/K1/k.cubin"}}'),
    SourceFile("triton", "tuned.json", b'{"a":1}'),
)


def statement(**changes):
    fields = {"namespace": Namespace("team"), "name": ShortName("bert"), "target": Target("bert/bf16")}
    return Statement(**{**fields, "sequence": 1_700_000_000_000, **changes})


def make_pack(folder: Path, files=FILES, **changes) -> tuple[Path, Manifest]:
    """Write a pack to the disk. Return its path and its manifest."""
    path = folder / "made.pack"
    with open(path, "wb") as out:
        contents = write_pack(files, out)
    signed_statement = statement(**changes)
    return path, Manifest(
        signed_statement,
        contents.pack,
        contents.frames,
        contents.files,
        {"torch": "2.13.0", "isa": "avx2"},
        Workload(),
    )


def sign_value(value: object) -> bytes:
    """Sign any JSON value with the trusted key, so that the value reaches the parser."""
    return KEY.sign_bytes(json.dumps(value).encode(), PAYLOAD_TYPE)


def _union(local: bytes, incoming: bytes) -> bytes:
    joined = {**json.loads(incoming), **json.loads(local)}
    return json.dumps(joined, sort_keys=True, separators=(",", ":")).encode()


RULES = {
    "inductor": KindRules("inductor", (FileRule(r"[a-z]{2}/[a-z0-9]+\.(?:so|py)"),)),
    "triton": KindRules(
        "triton",
        (
            FileRule(r"tuned\.json", "merge", merge=_union),
            FileRule(
                r"K\d+/__grp__k\.json",
                portable=lambda data, root: data.replace(str(root).encode(), b"@ROOT@"),
                local=lambda data, root: data.replace(b"@ROOT@", str(root).encode()),
                last=True,
            ),
            FileRule(r"K\d+/[a-z]+\.cubin"),
        ),
    ),
}


def contents(roots):
    """Return {kind/path: bytes} of all files, without the private folder."""
    return {
        f"{kind}/{path.relative_to(root)}": path.read_bytes()
        for kind, root in roots.items()
        for path in root.rglob("*")
        if path.is_file() and PRIVATE not in path.parts
    }


def run_in_child(work) -> int:
    """Run ``work`` in a forked child. Return its wait status."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1]


def kill_at_step(at: int):
    """Return a step callback that kills its process at the ``at``-th step."""
    steps = []

    def step(name):
        steps.append(name)
        if len(steps) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return step
