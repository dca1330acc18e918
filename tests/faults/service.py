"""Run a service whose folders of cachesvc fail at a moment, and print its numbers.

Arguments are NAME=VALUE. ``bundle``: attach to it; without it the service goes without cachesvc. ``moment``:
one of `faults.MOMENTS`. ``fault``: a value of FAULT (see inject.c), or what `DAMAGES` does to the folders.
``report``: a file for the outcome, and the folders that PyTorch used."""

import contextlib
import json
import os
import shutil
import sys

import short_life

options = dict(argument.split("=", 1) for argument in sys.argv[1:])


def every_file():
    for folder in os.environ["FAULT_BELOW"].split(":"):
        for place, _, names in os.walk(folder):
            yield from (os.path.join(place, name) for name in names)


def not_mapped():
    """Yield the files, without those that this process has mapped: Linux ends any process whose library
    another one cuts short."""
    with open("/proc/self/maps") as file:
        mapped = {line.split(maxsplit=5)[-1].strip() for line in file}
    yield from (path for path in every_file() if path not in mapped)


def cut(share):
    for path in not_mapped():
        with contextlib.suppress(OSError):
            os.truncate(path, int(os.path.getsize(path) * share))


def overwrite():
    for path in not_mapped():
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            file.write(b"\xff" * 64)


def remove_files():
    for path in every_file():
        with contextlib.suppress(OSError):
            os.unlink(path)


def remove():
    for folder in os.environ["FAULT_BELOW"].split(":"):
        shutil.rmtree(folder, ignore_errors=True)


def replace():
    """Put a file where a folder was."""
    for folder in os.environ["FAULT_BELOW"].split(":"):
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        while not os.path.isfile(folder):  # a thread of cachesvc's may make it again meanwhile
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError), open(folder, "w"):
                pass


DAMAGES = {
    "empty": lambda: cut(0),
    "cut": lambda: cut(0.5),
    "stub": lambda: cut(0.1),
    "overwrite": overwrite,
    "remove_files": remove_files,
    "remove": remove,
    "replace": replace,
}


def reach(moment):
    """Let the fault begin, if this is its moment."""
    if options.get("moment") != moment:
        return
    if options["fault"] in DAMAGES:
        DAMAGES[options["fault"]]()
    else:
        os.environ["FAULT"] = options["fault"]


import cachesvc_client  # noqa: E402

if "bundle" in options:
    reach("start")
    if options["moment"] == "install":
        from cachesvc_client.node import install as module

        install = module.install

        def install_late(*args, **kwargs):
            reach("install")
            return install(*args, **kwargs)

        module.install = install_late
    session = cachesvc_client.attach(bundle=options["bundle"])
    if options["moment"] != "start":
        session.wait(60)
reach("first compile")

import torch  # noqa: E402
from model import inputs  # noqa: E402


def other(x):
    return x.sin() * 3 - 1


def train():
    """Call a function with gradients. PyTorch compiles them when they are asked for, unless it caches the
    traced graph with them or the number of rows is ``dynamic``."""
    torch._functorch.config.enable_autograd_cache = False
    x = inputs(int(options["trains"])).requires_grad_()
    if "dynamic" in options:
        torch._dynamo.mark_dynamic(x, 0)
    reach("forward")
    y = torch.compile(lambda x: (x.exp() * 3).sum(1))(x)
    reach("backward")
    y.sum().backward()
    return x.grad.flatten().tolist()


numbers = {}
with torch.no_grad():
    numbers["published"] = torch.compile(lambda x: x.cos() * 2 + 1)(inputs()).flatten().tolist()
reach("later compile")
if options.get("moment", "later compile") == "later compile":
    with torch.no_grad():
        numbers["other"] = torch.compile(other)(inputs()).flatten().tolist()
if "trains" in options:
    numbers["gradients"] = train()
if "report" in options:
    report = cachesvc_client.report()
    with open(options["report"], "w") as file:
        json.dump(
            {
                "state": report.state,
                "reasons": list(report.reasons),
                "folder": os.environ.get("TORCHINDUCTOR_CACHE_DIR"),
                "graphs": report.observed.torch.graphs_compiled,
            },
            file,
        )
reach("exit")
print(json.dumps(numbers))
short_life.end()
