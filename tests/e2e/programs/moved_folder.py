"""Compile where the folder of the compiler is not what it was at attach, and print the report as JSON.

Arguments are NAME=VALUE. ``bundle`` or ``name``: what to attach to. ``how``: what becomes of the folder, see
`HOW`. ``folder``: where it goes. ``publish``: publish afterwards. ``again``: compile once more afterwards, as
before attach."""

import glob
import json
import os
import shutil
import sys

import short_life

options = dict(argument.split("=", 1) for argument in sys.argv[1:])
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
folder = options.get("folder", "")

import cachesvc_client  # noqa: E402

session = cachesvc_client.attach(**{key: options[key] for key in ("bundle", "name") if key in options})
if options["how"] == "at once":
    os.environ[VARIABLE] = folder

import torch  # noqa: E402
from model import inputs  # noqa: E402
from torch._inductor.utils import fresh_cache  # noqa: E402


def compiled_difference(rows: int = 4) -> float:
    torch._dynamo.reset()
    with torch.no_grad():
        return float(
            (torch.compile(lambda x: x.cos() * 2 + 1, dynamic=False)(inputs(rows)) - eager(rows)).abs().max()
        )


def eager(rows):
    return inputs(rows).cos() * 2 + 1


def fresh():
    with fresh_cache():
        return compiled_difference()


def at_once():
    return compiled_difference()


def later():
    os.environ[VARIABLE] = folder
    return compiled_difference()


def chdir():
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    return compiled_difference()


def cleaned():
    for path in glob.glob(f"{os.environ[VARIABLE]}/**/*", recursive=True):
        if os.path.isfile(path):
            os.unlink(path)
    return compiled_difference()


def removed():
    shutil.rmtree(os.environ[VARIABLE])
    return compiled_difference()


def cleaned_after():
    """Remove what was built, and what was saved, after the compile."""
    difference = compiled_difference()
    for path in glob.glob(f"{os.environ[VARIABLE]}/**/*", recursive=True):
        if os.path.isfile(path) and (path.endswith(".so") or "/aotautograd/" in path):
            os.unlink(path)
    return difference


HOW = {
    "at once": at_once,
    "later": later,
    "chdir": chdir,
    "fresh_cache": fresh,
    "cleaned": cleaned,
    "removed": removed,
    "cleaned after": cleaned_after,
    "nothing": compiled_difference,
}

if options["how"] != "at once":
    session.wait(60)
difference = HOW[options["how"]]()
report = cachesvc_client.report()
answer = {
    "state": report.state,
    "reasons": list(report.reasons),
    "compilations": report.compilations,
    "cpp_builds": report.observed.torch.cpp_builds,
    "difference": difference,
    "variable": os.environ.get(VARIABLE),
    "line": report.line,
}
if "again" in options:
    answer["again"] = compiled_difference(6)
if "publish" in options:
    try:
        answer["published"] = str(cachesvc_client.publish().revision)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        answer["error"] = f"{type(error).__name__}: {error}"
    answer["compilations"] = cachesvc_client.report().compilations
print(json.dumps(answer))
short_life.end()
