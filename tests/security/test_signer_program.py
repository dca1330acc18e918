"""The program that signs for a publisher was replaced, or lies: nothing is published with what it answers,
and it takes neither the memory nor the time of the publisher."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from cachesvc.warm.launcher import environment
from cachesvc.warm.spec.plan import plan
from cachesvc.warm.spec.spec import parse_spec
from cachesvc_client.bundle.pack import SourceFile
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.publication import signer
from cachesvc_client.publication.build_bundle import Draft, build_bundle
from cachesvc_client.publication.signer import ProgramSigner
from cachesvc_client.wire.errors import CacheSvcError, SpecError, Unavailable, Untrusted
from cachesvc_client.wire.manifest.records import Workload
from cachesvc_client.wire.names import Name, Target

from .signer_programs import signer_program

KEY = SigningKey.generate()
OTHER = SigningKey.generate()
DRAFT = Draft(Name.parse("team/bert"), Target("bert/f32"), {"torch": "2.13.0"}, Workload(), ("host",))
MEGABYTES = 1000
"""Output of a program that never stops, in megabytes: about a gigabyte."""


def refusal(folder: Path, body: str) -> CacheSvcError:
    """Return the error of a publisher whose program names KEY and answers ``body`` when it is to sign."""
    program = ProgramSigner.start(signer_program(folder, KEY, body))
    out = folder / "revision.cachesvc"
    with pytest.raises(CacheSvcError) as raised:
        build_bundle([SourceFile("inductor", "aa/a.py", b"code")], DRAFT, program, out)
    assert not out.exists(), "a bundle was written"
    assert str(raised.value).isprintable() and len(str(raised.value)) < 600
    return raised.value


def test_a_replaced_signer_program_cannot_sign_with_another_key(tmp_path: Path) -> None:
    error = refusal(tmp_path, f"key = SigningKey.from_text({OTHER.text!r}); print(sign(message))\n")
    assert isinstance(
        error, Untrusted
    ) and f"not a signature of these bytes by key {KEY.public.short}" in str(error)


@pytest.mark.parametrize(
    "message",
    ["b''", "message + b' '", "message[:-1]", "__import__('hashlib').sha512(message).digest()"],
    ids=["nothing", "more", "less", "hash"],
)
def test_a_replaced_signer_program_cannot_have_other_bytes_published(tmp_path: Path, message: str) -> None:
    assert "not a signature of these bytes" in str(refusal(tmp_path, f"print(sign({message}))\n"))


def test_a_replaced_signer_program_cannot_replay_a_signature(tmp_path: Path) -> None:
    old = tmp_path / "old"
    body = f"""
import pathlib
old = pathlib.Path({str(old)!r})
if not old.exists():
    old.write_text(sign(message))
print(old.read_text())
"""
    program = ProgramSigner.start(signer_program(tmp_path, KEY, body))
    assert KEY.public.verifies(program.sign_message(b"first"), b"first")
    with pytest.raises(Untrusted, match="not a signature of these bytes"):
        program.sign_message(b"second")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "print()\n",
        "print('ok')\n",
        "print(sign(message) * 2)\n",
        "print(sign(message)); print(sign(message))\n",
        "print('signature: ' + sign(message))\n",
        "print(sign(message)[:-4])\n",
        "print(sign(message) + ' ')\n",
        "print(base64.urlsafe_b64encode(bytes(range(192, 256))).decode())\n",
        "sys.stdout.buffer.write(key.sign_message(message))\n",
        "sys.stdout.buffer.write(bytes(range(256)))\n",
        "print('\\x1b[2J' + sign(message))\n",
        "print('A' * 88)\n",
    ],
)
def test_a_signer_program_that_answers_garbage_publishes_nothing(tmp_path: Path, body: str) -> None:
    assert isinstance(refusal(tmp_path, body), Untrusted)


def test_a_signer_program_that_names_a_key_of_nobody_is_not_used(tmp_path: Path) -> None:
    """Under a key of small order anybody's signature verifies."""
    weak = "ed25519:" + "A" * 43 + "="
    for answer in (weak, f"{KEY.public}\n{OTHER.public}", f" {KEY.public}", f"{KEY.text}", "ed25519:"):
        script = tmp_path / "names.sh"
        script.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
        script.chmod(0o755)
        with pytest.raises(Untrusted, match="no public key"):
            ProgramSigner.start([str(script)])


def runs(pid: str) -> bool:
    """Return whether there is such a process, and it has not ended."""
    try:
        return ") Z " not in Path("/proc", pid, "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_signer_program_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signer, "ANSWER_SECONDS", 3.0)
    pids = tmp_path / "pids"
    body = f"os.fork(); open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(600)\n"
    began = time.monotonic()
    assert isinstance(refusal(tmp_path, body), Unavailable)
    assert time.monotonic() - began < 20
    for pid in pids.read_text().split():
        while runs(pid):  # SIGKILL was sent, and takes effect when the kernel comes to it
            assert time.monotonic() - began < 30, "it is still running"
            time.sleep(0.05)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_signer_program_that_prints_a_gigabyte_takes_no_memory(tmp_path: Path, stream: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    body = f"for _ in range({MEGABYTES}): sys.{stream}.buffer.write(bytes(10**6))\nsys.exit(3)\n"
    error = refusal(tmp_path, body)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert kilobytes < 20_000, kilobytes
    expected = (Untrusted, "more than 4096 bytes") if stream == "stdout" else (Unavailable, "status 3")
    assert isinstance(error, expected[0]) and expected[1] in str(error)


def test_a_spec_cannot_pass_the_signer_program_to_its_models(tmp_path: Path) -> None:
    """The spec of a pull request names the variable in ``pass_env``."""
    base = {"CACHESVC_SIGNER": "cmd:/usr/bin/sign --pin 1234", "PATH": "/bin"}
    spec = 'name = "team/x"\n[[target]]\nid = "x"\nfactory = "m:f"\n'
    (job,) = plan(parse_spec(spec, tmp_path / "w.toml"))
    assert "1234" not in str(environment(job, tmp_path, {}, base))
    with pytest.raises(SpecError, match="CACHESVC_SIGNER"):
        parse_spec(spec + 'pass_env = ["CACHESVC_SIGNER"]\n', tmp_path / "w.toml")
