"""Test the command from end to end: real processes, the real compiler, a real registry."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from cachesvc.warm.launcher import Cancelled, Launcher, environment
from cachesvc.warm.spec.plan import plan
from cachesvc.warm.spec.spec import parse_spec
from cachesvc.warm.worker.phase import PhaseRequest
from cachesvc_client.bundle.check import check_envelope
from cachesvc_client.bundle.file import open_bundle
from cachesvc_client.bundle.seal import SigningKey

from .conftest import TINY, command

HEAD = """\
name = "team/tiny"
[defaults]
device = "cpu"
runs = 2
tracing = "always"
paths = ["{tiny}"]
pass_env = ["TINY_PIDS"]
[defaults.env]
OMP_NUM_THREADS = "1"
TORCHINDUCTOR_VEC_ISA_OK = "0"
TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS = "0"
"""


@dataclass
class Result:
    status: int
    out: str
    err: str

    @property
    def document(self) -> dict:
        return json.loads(self.out)

    @property
    def targets(self) -> dict[str, dict]:
        return {target["target"]: target for target in self.document["targets"]}


@pytest.fixture
def spec(tmp_path: Path):
    """Return a function that writes a spec beside an otherwise empty folder."""

    def write(body: str) -> Path:
        path = tmp_path / "warm.toml"
        path.write_text(HEAD.format(tiny=TINY) + body)
        return path

    return write


def warm(env: dict[str, str], *arguments: str | Path) -> Result:
    result = subprocess.run(command("warm", *arguments), env=env, capture_output=True, text=True, timeout=300)
    return Result(result.returncode, result.stdout, result.stderr)


TARGET = '[[target]]\nid = "tiny"\nfactory = "models:tiny"\ninputs = {a = {x = {shape = [4, 8]}}}\n'


@pytest.mark.compiles
def test_a_cold_spec_is_published_then_found_and_proven(registry, spec, tmp_path):
    path = spec(TARGET + 'tracing = "auto"\n[[target]]\nid = "bad"\nfactory = "models:raising"\n')
    # A CI system sets CI, which would change PyTorch's keys: the service below does not have it.
    ci = {**registry, "CI": "1"}

    cold = warm(ci, path, "--target", "tiny", "--check", "--json")
    assert (cold.status, cold.targets["tiny/default"]["status"]) == (9, "cold")

    built = warm(ci, path, "--json", "-j", "2", "--report", tmp_path / "report.md")
    tiny = built.targets["tiny/default"]
    assert tiny["status"] == "warm", tiny
    assert tiny["revision"].startswith("sha256:")
    assert tiny["observed"]["compilations"] == tiny["observed"]["tuning_runs"] == 0
    assert tiny["observed"]["compiler_processes"] == 0
    assert tiny["observed"]["torch"]["traces"] == 0 and "services of this entry do not trace" in tiny["notes"]
    assert tiny["numbers"]["restored_first_seconds"] < tiny["numbers"]["first_call_seconds"]
    share, frames = tiny["kinds"]["inductor"], tiny["kinds"]["frames"]["files_after"]
    assert frames == 1 and 0 < tiny["files_after"] - frames <= tiny["files_before"]
    assert {name: share[name] for name in ("files_after", "bytes_after", "emitted")} == {
        "files_after": tiny["files_after"] - frames,
        "bytes_after": tiny["bytes_after"] - tiny["kinds"]["frames"]["bytes_after"],
        "emitted": 0,
    }
    assert tiny["compared"]["a"]["allowed"] > tiny["compared"]["a"]["difference"]
    assert built.targets["bad/default"]["reasons"] == ["models:raising raised ValueError: no checkpoint"]
    assert built.status == 9
    written = (tmp_path / "report.md").read_text()
    assert "| tiny/default | warm |" in written and "| bad/default |" not in written
    assert 0 < tiny["numbers"]["steady_spread_seconds"]["low"] <= tiny["numbers"]["steady_seconds"]
    assert built.document["registry"] == registry["CACHESVC_URL"]
    assert built.document["use"] == "cachesvc run team/tiny -- python serve.py"
    # Progress is in plain lines, as standard error is no terminal.
    assert "tiny/default: compile\n" in built.err

    again = warm(registry, path, "--target", "tiny", "--json")
    assert (again.status, again.targets["tiny/default"]["status"]) == (0, "fresh")
    assert (
        again.targets["tiny/default"]["numbers"]["first_call_seconds"]
        == tiny["numbers"]["first_call_seconds"]
    )

    proven = warm(registry, path, "--target", "tiny", "--check", "--json")
    assert (proven.status, proven.targets["tiny/default"]["status"]) == (0, "warm")
    assert proven.targets["tiny/default"]["observed"]["torch"]["traces"] == 0
    assert proven.targets["tiny/default"]["numbers"]["eager_spread_seconds"] is not None

    printed = warm(registry, path, "--target", "tiny", "--report", "-")
    assert printed.out.startswith("# Warm report: team/tiny") and not Path("-").exists()

    changed = warm(registry, spec(TARGET.replace("[4, 8]", "[5, 8]")), "--check")
    assert changed.status == 9
    assert "team/tiny:latest has this target, but with a difference in inputs a\n" in changed.out
    assert "compiled 1 graph that no entry held" in changed.out

    _report_inert(registry, tiny["revision"])
    useless = warm(registry, spec(TARGET), "--check", "--json")
    assert (useless.status, useless.targets["tiny/default"]["status"]) == (9, "cold")
    assert (
        "services report it useless: usefulness: here inert" in useless.targets["tiny/default"]["reasons"][0]
    )


@pytest.mark.compiles
def test_a_check_replays_what_has_another_model_hash(registry, spec, tmp_path):
    """A comment changes the hash and no graph; another function changes the graph. Both are tried."""
    source = (TINY / "models.py").read_text()
    program = tmp_path / "program"
    program.mkdir()
    (program / "models.py").write_text(source)
    path = spec(TARGET + 'tracing = "auto"\n')
    text = path.read_text().replace("team/tiny", "team/edited").replace(str(TINY), str(program))
    path.write_text(text)
    assert warm(registry, path).status == 0

    (program / "models.py").write_text(source.replace("class Tiny(", "# A comment.\n\n\nclass Tiny("))
    commented = warm(registry, path, "--check", "--json")
    tiny = commented.targets["tiny/default"]
    assert (commented.status, tiny["status"], tiny["observed"]["compilations"]) == (0, "warm", 0), tiny
    notes = "; ".join(tiny["notes"])
    assert "forward (models.py:21): other code, or other lines" in notes, notes
    assert "with a difference in model" in notes

    (program / "models.py").write_text(source.replace("functional.gelu(", "functional.silu("))
    changed = warm(registry, path, "--check", "--json")
    tiny = changed.targets["tiny/default"]
    assert (changed.status, tiny["status"]) == (9, "cold"), tiny
    first = tiny["reasons"][0]
    assert first == "operations: here silu x1, entry gelu x1: warm the model that is served"
    assert any("forward (models.py:18)" in reason for reason in tiny["reasons"]), tiny["reasons"]


def _report_inert(registry: dict[str, str], revision: str) -> None:
    """Report inert starts of three hosts with two tokens, from the environment of a service that has not
    loaded torch yet."""
    code = "import json; from cachesvc_client.environment.detect import detect; print(json.dumps(detect()))"
    environ = {**registry, "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    known = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=True)
    fingerprint = json.loads(known.stdout)
    assert "threads" not in fingerprint
    url, admin = registry["CACHESVC_URL"], {"Authorization": f"Bearer {registry['CACHESVC_TOKEN']}"}
    body = {"label": "reports", "role": "report", "namespace": "*"}
    tokens = [httpx.post(f"{url}/v1/tokens", json=body, headers=admin).json()["secret"] for _ in range(2)]
    for host, token in enumerate([tokens[0], tokens[0], tokens[1]]):
        report = {
            "node": f"{host:032x}",
            "fingerprint": fingerprint,
            "revisions": [{"revision": revision, "state": "inert"}],
        }
        bearer = {"Authorization": f"Bearer {token}"}
        answer = httpx.post(f"{url}/v1/reports", json=report, headers=bearer)
        assert answer.status_code == 200, answer.text
    assert answer.json()["quarantined"] == [revision]


@pytest.mark.compiles
def test_bundles_are_written_without_a_registry(plain_environment, spec, tmp_path):
    """The targets are a script, a training step with dropout and a graph break, and a script whose graph
    depends on what PyTorch timed. Services of the last two do not trace. The bundles go into a folder."""
    path = spec(
        f'[[target]]\nid = "step"\nscript = "{TINY / "step.py"}"\nargs = ["64", "0"]\n'
        f'[[target]]\nid = "timed"\nscript = "{TINY / "timed.py"}"\nargs = ["{tmp_path / "mark"}"]\n'
        'tracing = "auto"\n'
        '[[target]]\nid = "train"\nfactory = "models:breaking"\nkind = "training"\ntracing = "auto"\n'
    )
    result = warm(plain_environment, path, "--out", tmp_path / "out", "--json", "-j", "2")
    assert result.status == 0, result.out + result.err
    key = SigningKey.load(Path(plain_environment["XDG_CONFIG_HOME"], "cachesvc", "signing.key"))
    assert str(key.public) in result.err
    for name, target in result.targets.items():
        envelope, _ = open_bundle(Path(target["bundle"]))
        manifest = check_envelope(envelope, trusted=[key.public], expected=None, now=time.time()).manifest
        assert (manifest.statement.target, manifest.scopes) == (name, ("host",))
        assert manifest.asked and manifest.asked["dtype"] == ["float32"], "the bundle of a script too"
        assert len(manifest.files) == target["files_after"]
        assert any(file.path.endswith(".so") for file in manifest.files)
    train = result.targets["train/default"]
    assert "graph_break" in train["graph_breaks"][0]["reason"]
    assert train["graph_breaks"][0]["where"].startswith("models.py:")
    assert "random" in train["compared"]["default"]["note"]
    for target in (train, result.targets["timed"]):
        assert "services of this entry do not trace" in target["notes"], target
    assert [path.suffix for path in (tmp_path / "out").iterdir()] == [".cachesvc"] * 3


@pytest.mark.compiles
def test_a_script_of_two_ranks_makes_one_entry(plain_environment, spec, tmp_path):
    """Each rank has a cache folder of its own, so a replay shows that each rank got the files that it needs
    and no others."""
    path = spec(f'[[target]]\nid = "two"\nscript = "{TINY / "ranks.py"}"\nnproc = 2\n')
    result = warm(plain_environment, path, "--out", tmp_path / "out", "--json")
    two = result.targets["two"]
    assert two["status"] == "warm", two
    assert (two["observed"]["compilations"], two["observed"]["torch"]["aot_hits"]) == (0, 4)
    key = SigningKey.load(Path(plain_environment["XDG_CONFIG_HOME"], "cachesvc", "signing.key"))
    envelope, _ = open_bundle(Path(two["bundle"]))
    manifest = check_envelope(envelope, trusted=[key.public], expected=None, now=time.time()).manifest
    assert manifest.workload.ranks == 2
    assert {file.ranks for file in manifest.files} == {(), (0,), (1,)}


FAILURES = {
    "named": (
        'factory = "models:tiny"\ninputs = {a = {wrong = {shape = [4, 8]}}}',
        'stands in the list "*" of the inputs',
    ),
    "dying": ('factory = "models:dying"', "the process died of SIGSEGV"),
    "whole": ('factory = "models:breaking"\nfullgraph = true', "the compiled model with inputs"),
    "status": (f'script = "{TINY / "step.py"}"\nargs = ["64", "3"]', "step.py ended with status 3"),
    "slow": ('factory = "models:sleeping"\ntimeout = 1', "took longer than 1 s (see timeout)"),
    "wrong": (
        'factory = "models:wrong"\ninputs = {a = {x = {shape = [4, 8]}}}',
        "compiled output against eager, inputs 'a': differs by 1",
    ),
    "uncached": (
        'factory = "models:breaking"\nenv = {TORCHINDUCTOR_FREEZING = "1"}',
        "does not cache a graph of this model: Cannot cache a graph with freezing enabled",
    ),
}


@pytest.mark.compiles
def test_the_fault_of_a_target_is_reported_and_loses_no_other_target(plain_environment, spec, tmp_path):
    body = "".join(f'[[target]]\nid = "{name}"\n{text}\n' for name, (text, _) in FAILURES.items())
    env = {**plain_environment, "TINY_PIDS": str(tmp_path / "pids")}
    result = warm(env, spec(body), "--out", tmp_path / "out", "--json", "-j", "2")
    assert result.status == 9 and "--verbose shows the traceback" in result.err
    targets = {target.split("/")[0]: facts for target, facts in result.targets.items()}
    for name, (_, part) in FAILURES.items():
        assert targets[name]["status"] == "failed"
        assert part in targets[name]["reasons"][0]
        assert "\n" not in targets[name]["reasons"][0]
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_every_started_process(plain_environment, spec, tmp_path, number):
    path = spec('[[target]]\nid = "sleeping"\nfactory = "models:sleeping"\n' + TARGET)
    pids = tmp_path / "pids"
    run = subprocess.Popen(
        command("warm", path, "--out", tmp_path / "out", "--json"),
        env={**plain_environment, "TINY_PIDS": str(pids)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    waited = time.monotonic() + 120
    while not (pids.exists() and len(pids.read_text().split()) == 2):
        assert run.poll() is None
        assert time.monotonic() < waited
        time.sleep(0.05)
    run.send_signal(number)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert {target["status"] for target in json.loads(out)["targets"]} == {"cancelled"}
    assert list((tmp_path / "out").iterdir()) == []
    for pid in map(int, pids.read_text().split()):
        end = time.monotonic() + 30
        while _lives(pid):
            assert time.monotonic() < end, f"process {pid} lives on"
            time.sleep(0.05)


def _lives(pid: int) -> bool:
    """Return whether the process runs; a zombie that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


MISTAKES = {
    "spec": (["no.toml"], 2, "No such file"),
    "target": (["{spec}", "--target", "tinny", "--dry-run"], 2, "did you mean 'tiny'"),
    "tag": (["{spec}", "--tag", "a b"], 2, "--tag"),
    "registry": (["{spec}"], 2, "cachesvc login"),
    "out": (["{spec}", "--out", "/proc/x"], 2, "--out /proc/x"),
    "report": (["{spec}", "--report", "/no/such/report.md"], 2, "no such folder"),
    "report on stdout twice": (["{spec}", "--report", "-", "--json"], 2, "both write to stdout"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_on_the_command_line_are_one_line(plain_environment, spec, mistake):
    arguments, status, part = MISTAKES[mistake]
    path = spec(TARGET)
    result = warm(plain_environment, *(item.format(spec=path) for item in arguments))
    assert result.status == status
    assert part in result.err
    assert result.err.startswith('{"format": "cachesvc.error/1"' if "--json" in arguments else "error: ")
    assert result.err.count("\n") == 1


def test_registry_and_token_are_checked_before_anything_runs(registry, spec):
    path = spec(TARGET)
    unreachable = warm({**registry, "CACHESVC_URL": "http://127.0.0.1:9"}, path)
    assert (unreachable.status, unreachable.err.count("\n")) == (6, 1)
    refused = warm({**registry, "CACHESVC_TOKEN": "csv_wrong"}, path)
    assert (refused.status, refused.err.count("\n")) == (3, 1)


def test_a_dry_run_starts_nothing(plain_environment, spec):
    result = warm(plain_environment, spec(TARGET), "--dry-run")
    assert (result.status, result.err) == (0, "")
    assert "tiny/default: inference of models:tiny, inputs a" in result.out
    as_json = warm(plain_environment, spec(TARGET), "--dry-run", "--json")
    assert as_json.document["rows"][0]["target"] == "tiny/default"


@pytest.fixture
def job(tmp_path):
    text = HEAD.format(tiny=TINY) + TARGET.replace("inputs", 'env = {OWN = "1"}\ninputs')
    return plan(parse_spec(text, tmp_path / "warm.toml"))[0]


def test_a_fresh_process_gets_nothing_of_the_builders(job, tmp_path):
    base = {
        "HOME": "/home/user",
        "PATH": "/bin",
        "CI": "true",
        "TMPDIR": "/scratch",
        "TORCHINDUCTOR_CACHE_DIR": "/cache",
        "TRITON_CACHE_DIR": "/cache/triton",
        "CUDA_CACHE_PATH": "/cache/cuda",
        "CACHESVC_NAME": "team/x",
        "CACHESVC_TOKEN": "secret",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    }
    environ = environment(job, tmp_path / "f", {"CACHESVC_STRICT": "1"}, base)
    assert {
        "PATH": "/bin",
        "OWN": "1",
        "CACHESVC_STRICT": "1",
    }.items() <= environ.items()
    assert environ["TORCHINDUCTOR_MAX_AUTOTUNE"] == "1"
    assert environ["HF_HOME"] == "/home/user/.cache/huggingface"
    for name in ("HOME", "TMPDIR", "CACHESVC_STORE"):
        assert environ[name].startswith(str(tmp_path / "f"))
    caches = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
    for name in ("CI", *caches, "CACHESVC_NAME", "CACHESVC_TOKEN"):
        assert name not in environ


def test_a_fresh_process_gets_no_secret_that_the_spec_does_not_name(job, tmp_path):
    secrets = {
        "SIGNING_KEY": "s",
        "GITHUB_TOKEN": "s",
        "ACTIONS_RUNTIME_TOKEN": "s",
        "AWS_SECRET_ACCESS_KEY": "s",
        "HF_TOKEN": "s",
        "HUGGINGFACE_API_KEY": "s",
        "PYTHON_KEYRING_PASSWORD": "s",
        "NVIDIA_API_KEY": "s",
        "MY_SETTING": "s",
        "XDG_CONFIG_HOME": "/home/user/.config",
    }
    needed = {
        "CC": "gcc",
        "LC_ALL": "C.UTF-8",
        "LD_LIBRARY_PATH": "/usr/gcc/lib",
        "CUDA_VISIBLE_DEVICES": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "4",
        "https_proxy": "http://proxy:3128",
    }
    base = {**secrets, **needed, "HOME": "/home/user"}
    environ = environment(job, tmp_path / "f", {}, base)
    assert not secrets.keys() & environ.keys()
    assert {**needed, "OMP_NUM_THREADS": "1"}.items() <= environ.items(), "the spec's own value counts"
    named = replace(job, spec=replace(job.spec, pass_env=("HF_TOKEN", "MY_SETTING", "TRITON_CACHE_DIR")))
    environ = environment(named, tmp_path / "f", {}, {**base, "TRITON_CACHE_DIR": "/cache"})
    assert secrets.keys() & environ.keys() == {"HF_TOKEN", "MY_SETTING"}
    assert "TRITON_CACHE_DIR" not in environ, "the builder's folders do not count either"


def test_a_cancelled_launcher_starts_nothing(job, tmp_path):
    launcher = Launcher()
    launcher.cancel()
    with pytest.raises(Cancelled):
        launcher.run(PhaseRequest("eager", job), tmp_path / "f", dict(os.environ))


@pytest.mark.compiles
def test_a_recording_that_takes_too_long_leaves_the_ordinary_entry(plain_environment, spec, tmp_path):
    """The process that records stops, and is killed when its phase has had its time."""
    program = tmp_path / "program"
    program.mkdir()
    (program / "models.py").write_text((TINY / "models.py").read_text() + STOPPED_WHILE_IT_RECORDS)
    target = TARGET.replace("models:tiny", "models:stopped")
    path = spec(target + 'tracing = "auto"\ntimeout = 60\n')
    path.write_text(path.read_text().replace(str(TINY), str(program)))
    built = warm(plain_environment, path, "--json", "--out", tmp_path / "out")
    tiny = built.targets["tiny/default"]
    assert (built.status, tiny["status"]) == (0, "warm"), tiny
    [note] = [note for note in tiny["notes"] if "trace" in note]
    why = "the recording failed: took longer than 60 s (see timeout)"
    assert note == f"services of this entry trace: {why}"
    assert "frames" not in tiny["kinds"] and tiny["files_after"] > 0


STOPPED_WHILE_IT_RECORDS = """

def stopped():
    import os, signal, threading, time
    from cachesvc_client.process.process import process

    def watch():
        while process().kinds["frames"].recording.recorder is None:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGSTOP)

    threading.Thread(target=watch, daemon=True).start()
    return tiny()
"""
