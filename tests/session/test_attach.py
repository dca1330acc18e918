"""Test `attach` and its neighbours in processes that never import torch: they are cheap, silent, and never an
error."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from tests.weight import LOADED_BY_ATTACH


def run_program(tmp_path: Path, program: str, **variables: str) -> tuple[dict, list[str]]:
    """Run a program. Return the JSON of its variable ``answer``, and the lines of its log."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CACHESVC_", "TORCH", "TRITON", "XDG_"))
    }
    whole = f"import json, sys\nimport cachesvc_client\n{program}\nprint(json.dumps(answer))"
    result = subprocess.run(
        [sys.executable, "-c", whole],
        env={**environ, "HOME": str(tmp_path), **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr.splitlines()


def test_attach_loads_few_modules_and_never_torch(tmp_path):
    """The thread of the restore waits, so that the count has only the modules that `attach` itself loads."""
    answer, _ = run_program(
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
    heavy = {"torch", "triton", "numpy", "cryptography", "zstandard", "hashlib", "http", "ssl"}
    heavy |= {"email", "asyncio"}
    assert not heavy & set(answer["more"])


def test_an_import_of_torch_during_the_detection_makes_no_deadlock(tmp_path):
    """Python 3.11 holds its import lock while finders look, the client's among them, and detection looks for
    packages: detection must not hold a lock that the client's finder waits for."""
    answer, _ = run_program(
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


def test_the_thread_of_the_restore_does_not_import_torch(tmp_path):
    answer, lines = run_program(
        tmp_path,
        "session = cachesvc_client.attach('team/x')\n"
        "over = cachesvc_client.wait(30)\n"
        "answer = {'over': over, 'status': cachesvc_client.status(), 'torch': 'torch' in sys.modules}",
        CACHESVC_URL="http://127.0.0.1:9",
        CACHESVC_TRUSTED_KEYS="",
    )
    assert answer == {"over": True, "status": {"team/x:latest": "failed"}, "torch": False}
    assert len(lines) == 1 and lines[0].startswith(
        "cachesvc: team/x:latest: not restored, this process compiles: "
    )


@pytest.mark.parametrize("other", ["team/x", "team/x:latest"])
def test_the_same_name_in_another_spelling_is_one_session(tmp_path, other):
    answer, _ = run_program(
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
    answer, _ = run_program(
        tmp_path,
        "import threading\n"
        "threading.Thread.start = lambda self: None\n"
        "answer = cachesvc_client.attach() is cachesvc_client.attach('team/x:latest')",
        CACHESVC_URL="http://127.0.0.1:9",
        CACHESVC_NAME="team/x",
    )
    assert answer is True


def test_without_any_configuration_there_is_one_line_and_no_error(tmp_path):
    answer, lines = run_program(
        tmp_path,
        "session = cachesvc_client.attach()\n"
        "session.wait(30)\n"
        "report = cachesvc_client.report()\n"
        "answer = {'status': session.status, 'state': report.state, 'reasons': report.reasons}",
    )
    assert (answer["status"], answer["state"]) == ("failed", "miss")
    assert "CACHESVC_NAME" in answer["reasons"][0]
    assert len(lines) == 1 and "CACHESVC_NAME" in lines[0], lines


def test_an_import_of_auto_without_a_name_says_once_that_nothing_is_attached(tmp_path):
    program = "import cachesvc_client.auto, cachesvc_client.auto\nanswer = cachesvc_client.status()"
    line = "cachesvc: auto: nothing is attached, this process compiles: set CACHESVC_NAME or CACHESVC_BUNDLE"
    assert run_program(tmp_path, program) == ({}, [line])
    assert run_program(tmp_path, program, CACHESVC_LOG="info") == ({}, [line])
    assert run_program(tmp_path, program, CACHESVC_MODE="off") == ({}, [])


def test_publish_in_a_process_that_only_reads_says_how_to_change_that(tmp_path):
    answer, _ = run_program(
        tmp_path,
        "try:\n    cachesvc_client.publish('team/x')\n"
        "except Exception as error:\n    answer = [type(error).__name__, str(error)]",
    )
    assert answer[0] == "Forbidden" and "CACHESVC_MODE=read)" in answer[1]
    assert "set CACHESVC_MODE=readwrite, or start it with: cachesvc run NAME --mode readwrite" in answer[1]


def test_the_lifespan_does_nothing_where_nothing_is_attached_and_loads_no_framework(tmp_path):
    answer, lines = run_program(
        tmp_path,
        "from cachesvc_client.integrations.fastapi import lifespan\n"
        "loaded = sorted({'fastapi', 'starlette', 'anyio', 'torch'} & set(sys.modules))\n"
        "import asyncio\n"
        "async def main():\n"
        "    async with lifespan()(None) as state:\n"
        "        return state\n"
        "answer = [loaded, asyncio.run(main())]",
    )
    assert (answer, lines) == ([[], None], [])


def test_the_lifespan_waits_for_a_restore_no_longer_than_the_deadline(tmp_path):
    """The registry takes connections and never answers. Own errors pass, and the end still runs."""
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        answer, _ = run_program(
            tmp_path,
            "import asyncio, contextlib, time\n"
            "from cachesvc_client.integrations.fastapi import lifespan\n"
            "session = cachesvc_client.attach('team/x')\n"
            "@contextlib.asynccontextmanager\n"
            "async def own(app):\n"
            "    yield session.ready\n"
            "    raise KeyError('own')\n"
            "async def main():\n"
            "    begin = time.monotonic()\n"
            "    try:\n"
            "        async with lifespan(own)(None) as ready:\n"
            "            waited = time.monotonic() - begin\n"
            "    except KeyError:\n"
            "        return [ready, waited]\n"
            "answer = asyncio.run(main())",
            CACHESVC_URL=f"http://127.0.0.1:{hangs.getsockname()[1]}",
            CACHESVC_TRUSTED_KEYS=f"team={SigningKey.generate().public}",
            CACHESVC_DEADLINE="1.5",
        )
    assert 0.4 < answer[1] < 10, answer


@pytest.mark.parametrize("how", ["attach('team/x')", "auto", "bootstrap"])
def test_mode_off_does_nothing(tmp_path, how):
    call = f"import cachesvc_client.{how}" if how.isalpha() else f"assert cachesvc_client.{how} is None"
    answer, lines = run_program(
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
    # The .pth file, if it is installed, has run first and done nothing.
    assert set(answer["loaded"]) <= {
        f"cachesvc_client.{how}",
        "cachesvc_client.bootstrap",
        "cachesvc_client.environment",
        "cachesvc_client.environment.variables",
    }
    assert (answer["wait"], answer["status"], lines) == (True, {}, [])


def test_mode_off_leaves_compile_to_torch_alone(tmp_path):
    """The test uses the real torch, which compiles nothing until the function is called."""
    answer, _ = run_program(
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


def test_prime_without_torch_logs_a_line_and_is_no_error(tmp_path):
    answer, lines = run_program(
        tmp_path, "sys.modules['torch'] = None\ncachesvc_client.prime()\nanswer = 'went on'"
    )
    assert answer == "went on"
    assert lines and all(line.startswith("prime: torch") for line in lines)


def test_a_spawned_worker_of_an_attached_process_says_that_it_is_not_attached(tmp_path):
    """It compiled, and "attach earlier" would be no help. With the mode "off" the variable is named."""
    (tmp_path / "worker.py").write_text(
        "def reasons():\n"
        "    import torch, cachesvc_client\n"
        "    torch.compile(lambda x: x @ x, backend='eager')(torch.ones(2, 2))\n"
        "    return cachesvc_client.report().reasons\n"
    )
    program = (
        "import concurrent.futures, multiprocessing, worker\n"
        "cachesvc_client.attach('team/bert')\n"
        "context = multiprocessing.get_context('spawn')\n"
        "with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:\n"
        "    answer = pool.submit(worker.reasons).result()"
    )
    place = {"PYTHONPATH": path_with(tmp_path), "CACHESVC_URL": "http://127.0.0.1:9"}
    (line,), _ = run_program(tmp_path, program, **place)
    assert line == "this process is not attached: call attach() in it, or start it by cachesvc-client run"
    (line,), _ = run_program(tmp_path, program, **place, CACHESVC_MODE="off")
    assert line == "cachesvc is switched off in this process: CACHESVC_MODE=off"


def path_with(folder: Path) -> str:
    """Return the PYTHONPATH of this process with another folder."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
