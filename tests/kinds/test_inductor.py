"""Test the keys of host kernels: every process computes the same key, and every input of the machine code
changes it."""

from __future__ import annotations

import enum
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.hooks import imports
from cachesvc_client.kinds.inductor.host_kernels import HostKernels, kernel_key
from cachesvc_client.kinds.inductor.kind import KIND, InductorState
from cachesvc_client.kinds.inductor.used_files import UsedFiles
from cachesvc_client.kinds.kind import KindState, ProcessCallbacks
from cachesvc_client.kinds.testing import Example, KindConformance
from cachesvc_client.node.ledger import Ledger

HASH = "dsjz5o2tbovhe5ev7s6zpbucuplqbcxzmrhv2lyg4vwjapuxlndx"
HOST_KERNEL = "cachesvc/" + "0" * 16 + "/" + "a1" * 32 + ".so"
TUNED = "wz/" + "0f" * 32 + ".best_config"
PROGRAM = """
from torch._inductor import config
from torch._inductor.codecache import CppCodeCache, CppPythonBindingsCodeCache
from cachesvc_client.kinds.inductor.host_kernels import kernel_key
code = "extern void kernel(float* out) { *out = 1; }"
def key(cls=CppCodeCache, *args, **kwargs):
    return kernel_key(cls, args, kwargs)
plain = key(CppCodeCache, code)
print(plain)
others = [
    key(CppCodeCache, code + " "),
    key(CppPythonBindingsCodeCache, code),
    key(CppCodeCache, code, "cuda"),
    key(CppCodeCache, code, extra_flags=("-O0",)),
    key(CppCodeCache, code, optimized_code="int x;"),
]
with config.patch("cpp.enable_unsafe_math_opt_flag", True):
    others.append(key(CppCodeCache, code))
assert len({plain, *others}) == 1 + len(others), others
assert key(CppCodeCache, code, submit_fn=print) == plain == key(CppCodeCache, main_code=code)
"""


class TestConformance(KindConformance):
    """Uses paths as Inductor writes them on a CPU and on an H200."""

    kind = KIND
    examples = (
        Example(f"fxgraph/ds/f{HASH[1:]}/{HASH}", b"\x80\x04}.", last=True),
        Example(f"aotautograd/a{HASH[1:]}/{HASH}", b"\x80\x04}.", last=True),
        Example(HOST_KERNEL, b"\x7fELF" + bytes(range(256)), "ours"),
        Example(TUNED, b'{"XBLOCK": 32, "num_warps": 4}', "merge"),
        Example("cache/" + "ab" * 32, b'{"mm": {"a": {"1": 0.5}}}', "merge"),
        Example(f"wz/c{HASH}.picked_kernel", b"1"),
    )
    others = (
        *(f"wz/c{HASH}.py", f"wz/c{HASH}.main.so", f"fxgraph/ds/f{HASH[1:]}/.1234.tmp"),
        *("dynamo/code_state_0.pkl", "cachesvc/" + "0" * 16 + "/../../evil.so"),
        *(f"../aotautograd/a{HASH[1:]}/{HASH}", f"/aotautograd/a{HASH[1:]}/{HASH}"),
        f"aotautograd/a{HASH[1:]}/{HASH}\n",
    )

    def use(self, state: KindState, root: Path) -> set[str]:
        assert isinstance(state, InductorState)

        def record_artifact(artifact_type: str, key: str, content: bytes) -> None: ...

        record = imports.Call(record_artifact, ("autotune", TUNED, b""), {})
        state._used.record_artifact(record)
        state._used.kernels[HOST_KERNEL] = root / HOST_KERNEL
        return {HOST_KERNEL}

    def allowed(self, state: KindState) -> list[Path]:
        assert isinstance(state, InductorState)
        return state._kernels._folders


@pytest.mark.compiles
def test_a_key_is_stable_across_processes_and_differs_between_kernels(tmp_path: Path) -> None:
    running = []
    for seed in ("1", "2"):
        place = tmp_path / seed
        place.mkdir()
        env = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "HOME": str(place),
            "TORCHINDUCTOR_CACHE_DIR": str(place),
        }
        command = [sys.executable, "-c", PROGRAM]
        running.append(subprocess.Popen(command, env=env, cwd=place, stdout=-1, stderr=-1, text=True))
    keys = set()
    for process in running:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err[-3000:]
        keys.add(out.strip())
    assert len(keys) == 1 and len(keys.pop()) == 64


def test_a_tuning_result_that_somebody_changed_after_its_save_is_not_of_this_process(tmp_path: Path) -> None:
    """Nobody knew what a saved result held, so whatever lay under its name was signed."""
    from torch._inductor.remote_cache import RemoteCacheJsonSerde

    used, root = UsedFiles(), tmp_path / "inductor"
    results = [{"XBLOCK": 32, "num_warps": 4, "time_taken_ms": 0.1}, {"XBLOCK": 64, "num_warps": 8}]

    def record_artifact(artifact_type: str, key: str, content: object) -> None: ...

    def save(result: object) -> None:
        used.record_artifact(imports.Call(record_artifact, ("autotune", TUNED, result), {}))

    for result in (*results, results[0]):
        used.save(imports.Call(save, (result,), {}))
    made = {("inductor", path): digest for path, digest in used.made().items()}
    right = RemoteCacheJsonSerde().encode(results[0])
    (root / TUNED).parent.mkdir(parents=True)
    for content, is_made in ((right, True), (b'{"XBLOCK": 1}', False)):
        (root / TUNED).write_bytes(content)
        files = [SourceFile("inductor", TUNED, content)]
        [known] = Ledger(0).trace(files, made, {"inductor": root})
        assert known.origin.made is is_made and bool(known.origin.unknown) is not is_made


def test_an_unknown_parameter_prevents_a_key() -> None:
    """The parameter may decide the machine code, so PyTorch builds as it does without cachesvc."""

    class Later:
        @classmethod
        def load_async(cls, main_code: str, device_type: str = "cpu", tuning: str = "") -> str:
            return f"built {main_code} {device_type} {tuning}"

    module: Any = SimpleNamespace(CppCodeCache=Later, __name__="codecache")
    callbacks = ProcessCallbacks(before_compile=lambda: None, launched=lambda _: None)
    load = functools.partial(HostKernels(UsedFiles()).load_async, callbacks)
    assert imports.hook(module, "CppCodeCache.load_async", load)
    assert Later.load_async("code", "cpu", "fast") == "built code cpu fast"
    with pytest.raises(ValueError, match="tuning"):
        kernel_key(Later, ("code", "cpu", "fast"), {})


def test_a_record_of_another_type_is_passed_on() -> None:
    """The kind is an enumeration until torch 2.7."""
    Kind = enum.Enum("Kind", "INDUCTOR")
    records: list[Any] = []

    class CacheArtifactManager:
        @classmethod
        def record_artifact(cls, artifact_type: Any, key: str, content: Any, more: int = 0) -> None:
            records.append((artifact_type, key, content, more))

    recorded = UsedFiles()
    module = cast(Any, SimpleNamespace(CacheArtifactManager=CacheArtifactManager))
    assert imports.hook(module, "CacheArtifactManager.record_artifact", recorded.record_artifact)
    CacheArtifactManager.record_artifact(Kind.INDUCTOR, "fkey", b"graph")
    assert len(recorded) == 0
    CacheArtifactManager.record_artifact("inductor", "fkey", b"graph", more=1)
    assert records == [(Kind.INDUCTOR, "fkey", b"graph", 0), ("inductor", "fkey", b"graph", 1)]
    assert recorded.keys() == {"fkey"}


NAMELESS = """
import getpass, os, pwd, sys
from pathlib import Path

from cachesvc_client.kinds.inductor.kind import KIND
from cachesvc_client.kinds.own_place import default_folder
from torch._inductor.runtime import cache_dir_utils

os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
os.setuid(54321)
chosen = Path(cache_dir_utils.cache_dir())
assert default_folder() == chosen, (default_folder(), chosen)
assert KIND.folder.named(chosen, {}) is None and KIND.folder.named(Path("/named"), {}) == Path("/named")
del sys.modules[cache_dir_utils.__name__]
assert default_folder() == chosen, (default_folder(), chosen)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes a user without a name")
def test_the_default_folder_of_a_user_without_a_name_is_pytorchs(tmp_path: Path) -> None:
    """It counted as the user's choice: then nothing of the folder is emptied or set again."""
    names = ("USER", "LOGNAME", "LNAME", "USERNAME", "TORCHINDUCTOR_CACHE_DIR")
    environ = {name: value for name, value in os.environ.items() if name not in names}
    environ["TMPDIR"] = f"/tmp/{tmp_path.name}-{os.getpid()}"
    os.mkdir(environ["TMPDIR"])
    os.chown(environ["TMPDIR"], 54321, 54321)
    try:
        command = [sys.executable, "-c", NAMELESS]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    finally:
        shutil.rmtree(environ["TMPDIR"])
