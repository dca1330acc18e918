"""Test that a program signs what a key file would sign, and that its failures are one clear line."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from packing import make_pack

from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.config.settings import Config
from cachesvc_client.publication import signer
from cachesvc_client.publication.signer import ProgramSigner, signer_of
from cachesvc_client.wire.errors import CacheSvcError, InvalidRequest, Unavailable, Untrusted
from tests.security.signer_programs import REPOSITORY, signer_program

EXAMPLES = REPOSITORY / "examples/signer"
KEY = SigningKey.generate()
LARGE = os.urandom(1 << 20)
"""More bytes than a pipe holds."""


def test_a_program_makes_the_envelope_that_its_key_makes(tmp_path: Path) -> None:
    program, (_, manifest) = ProgramSigner.start(signer_program(tmp_path, KEY)), make_pack(tmp_path)
    assert program.public == KEY.public and KEY.text not in repr(program)
    assert program.sign(manifest) == KEY.sign(manifest)
    assert program.sign_bytes(LARGE, "text/plain") == KEY.sign_bytes(LARGE, "text/plain")
    verified = check_envelope(program.sign(manifest), trusted=[KEY.public], expected=None, now=0)
    assert verified.signer == KEY.public


def test_the_program_gets_no_variable_of_cachesvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHESVC_TOKEN", "csv_secret")
    monkeypatch.setenv("CACHESVC_NAME", "team/x")
    monkeypatch.setenv("CLOUD_PROFILE", "ci")
    body = f"open({str(tmp_path / 'seen')!r}, 'w').write(' '.join(os.environ)); print(sign(message))\n"
    ProgramSigner.start(signer_program(tmp_path, KEY, body)).sign_message(b"")
    names = (tmp_path / "seen").read_text().split()
    assert "CLOUD_PROFILE" in names and not [name for name in names if name.startswith("CACHESVC_")]


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (
            "sys.exit('the token \\x1b[2J is locked\\nsecond line')\n",
            Unavailable,
            "status 1: the token ?[2J is",
        ),
        ("os.kill(os.getpid(), 9)\n", Unavailable, "signal 9"),
        ("time.sleep(60)\n", Unavailable, "did not end within 1 s"),
        (
            "if os.fork():\n    time.sleep(60)\nelse:\n    time.sleep(60)\n",
            Unavailable,
            "did not end within 1 s",
        ),
        ("os.close(1); os.close(2); time.sleep(60)\n", Unavailable, "did not end within 1 s"),
    ],
    ids=["status", "signal", "hangs", "with-a-child", "without-pipes"],
)
def test_a_program_that_fails_is_one_line(
    tmp_path: Path, body: str, error: type[CacheSvcError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = ProgramSigner.start(signer_program(tmp_path, KEY, body))
    monkeypatch.setattr(signer, "ANSWER_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(error) as raised:
        program.sign_message(LARGE)
    assert words in str(raised.value) and str(raised.value).isprintable(), raised.value
    assert "second line" not in str(raised.value) and "with space" not in str(raised.value)
    assert time.monotonic() - began < 20


def test_a_program_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no program")
    for word, problem in ((tmp_path / "absent", "No such file"), (tmp_path / "data", "Permission denied")):
        with pytest.raises(InvalidRequest, match=f"cannot be started: {problem}"):
            ProgramSigner.start([str(word)])
    with pytest.raises(Untrusted, match="which is no public key"):
        ProgramSigner.start(["echo"])
    with pytest.raises(Unavailable, match="ended with status 1"):
        ProgramSigner.start(["false"])


def test_the_program_is_named_in_one_variable_and_no_other_key_beside_it(tmp_path: Path) -> None:
    KEY.save(tmp_path / "key")
    program, script, *arguments = signer_program(tmp_path, KEY)
    text = f"cmd:{program} '{script}' {arguments[0]} '{arguments[1]}'"
    config = Config.read({"CACHESVC_SIGNER": text})
    assert config.signer == (program, script, *arguments) and config.can_sign
    named = signer_of(config)
    assert named is not None and named.public == KEY.public
    assert signer_of(Config.read({})) is None and not Config.read({}).can_sign
    with pytest.raises(InvalidRequest, match="both set"):
        Config.read({"CACHESVC_SIGNER": text, "CACHESVC_SIGNING_KEY": str(tmp_path / "key")})
    for wrong in (KEY.text, "cmd:", "cmd:  ", "cmd:sign 'it", "cmd:''", "pkcs11:token=ci", "/bin/sign"):
        with pytest.raises(InvalidRequest, match=r"CACHESVC_SIGNER: .*allowed: cmd:PROGRAM") as refused:
            Config.read({"CACHESVC_SIGNER": wrong})
        assert KEY.text not in str(refused.value)


def signs(words: list[str]) -> None:
    """Check that a program signs well, also more bytes than a pipe holds."""
    program = ProgramSigner.start(words)
    for message in (b"DSSEv1", LARGE[:200_000]):
        assert program.public.verifies(program.sign_message(message), message)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_the_example_with_openssl_signs(tmp_path: Path) -> None:
    key = tmp_path / "ci.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    signs([str(EXAMPLES / "openssl.sh"), str(key)])
    subprocess.run(["openssl", "genpkey", "-algorithm", "X25519", "-out", tmp_path / "other.pem"], check=True)
    for wrong in ("absent.pem", "signer.py"):
        with pytest.raises(Unavailable, match="status 1"):
            ProgramSigner.start([str(EXAMPLES / "openssl.sh"), str(tmp_path / wrong)])
    with pytest.raises((Unavailable, Untrusted)):
        ProgramSigner.start([str(EXAMPLES / "openssl.sh"), str(tmp_path / "other.pem")]).sign_message(b"x")


@pytest.fixture
def ssh_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start an agent that holds one Ed25519 key, with the comment ``cachesvc-ci``."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("no ssh-agent")
    address = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", address], stdout=subprocess.DEVNULL)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(address))
    key = str(tmp_path / "key")
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key, "-C", "cachesvc-ci"], check=True
    )
    while not address.exists():
        assert process.poll() is None
        time.sleep(0.02)
    subprocess.run(["ssh-add", "-q", key], check=True)
    os.unlink(key)
    yield
    process.terminate()
    process.wait(10)


@pytest.mark.usefixtures("ssh_agent")
def test_the_example_with_an_ssh_agent_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [str(EXAMPLES / "ssh_agent.py"), "cachesvc-ci"]
    signs(words)
    with pytest.raises(Unavailable, match="does not answer"):
        ProgramSigner.start(words).sign_message(LARGE)
    with pytest.raises(Unavailable, match="no Ed25519 key with the comment other"):
        ProgramSigner.start([words[0], "other"])
    monkeypatch.delenv("SSH_AUTH_SOCK")
    with pytest.raises(Unavailable, match="does not answer"):
        ProgramSigner.start(words)
