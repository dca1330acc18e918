"""A service that publishes: attaches to NAME, does each STEP, and prints what came of it as JSON.

``compile:N``: compile the N-th function. ``publish:TARGET``: publish under NAME. ``quiet``: wait until the
process has published by itself. ``save:FILE`` and ``load:FILE``: PyTorch's own artifacts of what was
compiled. ``plant:FOLDER``: copy a cache folder into this process's own. ``beside:BUNDLE``: have another
process with the same folders restore a bundle, with the key that lies beside it."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import short_life

import cachesvc_client

session = cachesvc_client.attach(sys.argv[1])
session.wait(60)

import torch  # noqa: E402
from model import inputs  # noqa: E402

from cachesvc_client.process.process import process  # noqa: E402
from cachesvc_client.wire.errors import CacheSvcError  # noqa: E402

FUNCTIONS = (
    lambda x: x.cos() * 2 + 1,
    lambda x: x.sin() * 3 - 1,
    lambda x: x.exp().tanh() / 5,
)
said = {"revisions": [], "errors": []}


def compile_one(number):
    function = FUNCTIONS[int(number)]
    with torch.no_grad():
        assert torch.allclose(torch.compile(function)(inputs()), function(inputs()), atol=1e-5)


def publish(target):
    try:
        said["revisions"].append(str(cachesvc_client.publish(sys.argv[1], target=target or "app").revision))
    except CacheSvcError as error:
        said["errors"].append(str(error))


def wait_until_published(_):
    end = time.monotonic() + 60
    while not process().files._published and time.monotonic() < end:
        time.sleep(0.2)


def save(path):
    Path(path).write_bytes(torch.compiler.save_cache_artifacts()[0])


def load(path):
    torch.compiler.load_cache_artifacts(Path(path).read_bytes())


def plant(folder):
    shutil.copytree(folder, process().folders.roots()["inductor"], dirs_exist_ok=True)


def restore_beside(bundle):
    key = Path(bundle).with_suffix(".pub").read_text()
    program = [sys.executable, str(Path(__file__).with_name("attached.py")), json.dumps({"bundle": bundle})]
    variables = {**os.environ, "CACHESVC_TRUSTED_KEYS": key, "CACHESVC_MODE": "read"}
    done = subprocess.run(
        program, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True
    )
    assert json.loads(done.stdout)["installed"], done.stdout


STEPS = {
    "compile": compile_one,
    "publish": publish,
    "quiet": wait_until_published,
    "save": save,
    "load": load,
    "plant": plant,
    "beside": restore_beside,
}
for step in sys.argv[2:]:
    word, _, argument = step.partition(":")
    STEPS[word](argument)
report = cachesvc_client.report()
said |= {
    "state": report.state,
    "compilations": report.compilations,
    "files": sorted(f"{file.kind}/{file.path}" for file in session.capture()),
    "folder": str(process().folders.roots()["inductor"]),
    "pid": os.getpid(),
}
print(json.dumps(said), flush=True)
short_life.end()
