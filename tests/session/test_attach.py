"""`attach` and what stands beside it, in processes that never import torch: cheap, silent, never an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.weight import LOADED_BY_ATTACH


def said(tmp_path: Path, program: str, **variables: str) -> tuple[dict, list[str]]:
    """The JSON that a program leaves in ``answer``, and the lines of its log."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CACHESVC_", "TORCH", "TRITON", "XDG_"))
    }
    whole = f"import json, sys\nimport cachesvc_client\n{program}\nprint(json.dumps(answer))"
    done = subprocess.run(
        [sys.executable, "-c", whole],
        env={**kept, "HOME": str(tmp_path), **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr.splitlines()


def test_attach_loads_few_modules_and_never_torch(tmp_path):
    """The thread is held back, so that what is counted is what `attach` itself loads."""
    answer, _ = said(
        tmp_path,
        "import threading\n"
        "threading.Thread.start = lambda self: None\n"
        "before = set(sys.modules)\n"
        "cachesvc_client.attach('team/x')\n"
        "answer = {'ours': [n for n in sys.modules if n.startswith('cachesvc')], "
        "'more': sorted({n.partition('.')[0] for n in set(sys.modules) - before})}",
        CACHESVC_URL="http://127.0.0.1:9",
    )
    assert set(answer["ours"]) == LOADED_BY_ATTACH
    heavy = {"torch", "triton", "numpy", "cryptography", "zstandard", "http", "ssl", "email", "asyncio"}
    assert not heavy & set(answer["more"])


def test_an_import_of_torch_beside_the_detection_does_not_lock_both(tmp_path):
    """Python holds its import lock while finders look (3.11), ours among them, and detection looks for
    packages: it must not hold what our finder waits for."""
    answer, _ = said(
        tmp_path,
        "import threading, time\n"
        "from cachesvc_client.environment import detect\n"
        "detecting, looking, real = threading.Event(), threading.Event(), detect.detect\n"
        "class Tells:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'torch':\n"
        "            looking.set()\n"
        "def late():\n"
        "    detecting.set()\n"
        "    looking.wait(30)\n"
        "    time.sleep(0.5)\n"
        "    return real()\n"
        "detect.detect = late\n"
        "from cachesvc_client.session.sessions import AttachOptions, open_session\n"
        "open_session(AttachOptions('team/x'), with_torch=True)  # as the .pth file does\n"
        "cachesvc_client.attach('team/x')\n"
        "sys.meta_path.insert(0, Tells())\n"
        "detecting.wait(30)\n"
        "import torch\n"
        "answer = {'over': cachesvc_client.wait(30), 'looked': looking.is_set()}",
        CACHESVC_URL="http://127.0.0.1:9",
    )
    assert answer == {"over": True, "looked": True}


def test_the_thread_does_not_import_torch_either(tmp_path):
    answer, lines = said(
        tmp_path,
        "session = cachesvc_client.attach('team/x')\n"
        "over = cachesvc_client.wait(30)\n"
        "answer = {'over': over, 'status': cachesvc_client.status(), 'torch': 'torch' in sys.modules}",
        CACHESVC_URL="http://127.0.0.1:9",
        CACHESVC_TRUSTED_KEYS="",
    )
    assert answer == {"over": True, "status": {"team/x:latest": "failed"}, "torch": False}
    assert len(lines) == 1 and lines[0].startswith("team/x:latest: not restored, this process compiles: ")


@pytest.mark.parametrize("other", ["team/x", "team/x:latest"])
def test_the_same_name_in_another_spelling_is_one_session(tmp_path, other):
    answer, _ = said(
        tmp_path,
        "import threading\n"
        "threading.Thread.start = lambda self: None\n"
        f"one, two = cachesvc_client.attach('team/x'), cachesvc_client.attach({other!r})\n"
        "three = cachesvc_client.attach('team/x:v2')\n"
        "from cachesvc_client.session.sessions import attached\n"
        "answer = {'same': one is two, 'other': one is three, 'sessions': len(attached().sessions)}",
        CACHESVC_URL="http://127.0.0.1:9",
    )
    assert answer == {"same": True, "other": False, "sessions": 2}


def test_the_variable_and_the_argument_are_one_session_too(tmp_path):
    answer, _ = said(
        tmp_path,
        "import threading\n"
        "threading.Thread.start = lambda self: None\n"
        "answer = cachesvc_client.attach() is cachesvc_client.attach('team/x:latest')",
        CACHESVC_URL="http://127.0.0.1:9",
        CACHESVC_NAME="team/x",
    )
    assert answer is True


def test_without_any_configuration_there_is_one_line_and_no_error(tmp_path):
    answer, lines = said(
        tmp_path,
        "session = cachesvc_client.attach()\n"
        "session.wait(30)\n"
        "report = cachesvc_client.report()\n"
        "answer = {'status': session.status, 'state': report.state, 'reasons': report.reasons}",
    )
    assert (answer["status"], answer["state"]) == ("failed", "unused")
    assert "CACHESVC_NAME" in answer["reasons"][0]
    assert len(lines) == 1 and "CACHESVC_NAME" in lines[0], lines


@pytest.mark.parametrize("how", ["attach('team/x')", "auto", "bootstrap"])
def test_mode_off_is_as_if_it_were_not_there(tmp_path, how):
    call = f"import cachesvc_client.{how}" if how.isalpha() else f"assert cachesvc_client.{how} is None"
    answer, lines = said(
        tmp_path,
        "import threading\n"
        "before = list(sys.meta_path)\n"
        f"{call}\n"
        "answer = {'hooks': sys.meta_path != before, 'threads': threading.active_count(), "
        "'loaded': sorted(n for n in sys.modules if n.startswith('cachesvc_client.')), "
        "'wait': cachesvc_client.wait(), 'status': cachesvc_client.status()}",
        CACHESVC_MODE="off",
        CACHESVC_NAME="team/x",
        CACHESVC_URL="http://127.0.0.1:9",
    )
    assert (answer["hooks"], answer["threads"]) == (False, 1)
    # The .pth file, where it is installed, has come first and done nothing.
    assert set(answer["loaded"]) <= {
        f"cachesvc_client.{how}",
        "cachesvc_client.bootstrap",
        "cachesvc_client.environment",
        "cachesvc_client.environment.variables",
    }
    assert (answer["wait"], answer["status"], lines) == (True, {}, [])


def test_mode_off_leaves_compile_to_torch_alone(tmp_path):
    """With the real torch, which compiles nothing until it is called."""
    answer, _ = said(
        tmp_path,
        "import threading, torch\n"
        "before, threads = list(sys.meta_path), threading.active_count()\n"
        "made = cachesvc_client.compile(torch.nn.Linear(2, 2), name='team/x')\n"
        "answer = {'type': type(made).__name__, 'hooks': sys.meta_path != before, "
        "'threads': threading.active_count() - threads, "
        "'session': 'cachesvc_client.session.session' in sys.modules}",
        CACHESVC_MODE="off",
    )
    assert answer == {"type": "OptimizedModule", "hooks": False, "threads": 0, "session": False}


def test_prime_without_torch_is_a_line_and_no_error(tmp_path):
    answer, lines = said(tmp_path, "sys.modules['torch'] = None\ncachesvc_client.prime()\nanswer = 'went on'")
    assert answer == "went on"
    assert lines and all(line.startswith("prime: torch") for line in lines)
