"""Run the conformance probe in this process, then break one thing after the other and run the check that must
notice. Print the reasons as JSON, by what was broken."""

import contextlib
import importlib
import json
from unittest import mock

from cachesvc.warm.worker import conformance
from cachesvc.warm.worker.conformance import Probe
from cachesvc_client.canary.trial import Trial
from cachesvc_client.graphs.keys import AUTOGRAD_KEY, GRAPH_KEY
from cachesvc_client.hooks import imports
from cachesvc_client.kinds.inductor.used_files import UsedFiles

probe = Probe()
checks = dict(conformance.CHECKS)
reasons = {}


def run(broken, check):
    """Run one check, and note its reason."""
    try:
        reasons[broken] = checks[check](probe)
    except Exception as error:  # noqa: BLE001 - `failures` notes it as well
        reasons[broken] = f"raised {type(error).__name__}"


@contextlib.contextmanager
def left_out(part):
    """Leave a part out of the keys of this torch, whoever puts it there."""
    with contextlib.ExitStack() as stack:
        for hook in (GRAPH_KEY, AUTOGRAD_KEY):
            details = hook.owner(importlib.import_module(hook.module))
            stack.enter_context(mock.patch.object(details, "__init__", _without(details.__init__, part)))
        yield


def _without(init, part):
    def without(details, *args, **kwargs):
        init(details, *args, **kwargs)
        vars(details).pop(part, None)

    return without


def called_and_unused(trial, compiled):
    """Call the canary and give the caller the compiled function's numbers."""

    def watched(*args):
        trial._called()
        return compiled(*args)

    return watched


def without_keywords(_, original):
    return lambda *args: original(*args)


for name in checks:
    run(f"nothing: {name}", name)
probe.state.arm()
with mock.patch.object(Trial, "watch", lambda _, compiled: compiled):
    run("the canary is left out", "the canary is called")
with mock.patch.object(Trial, "watch", called_and_unused):
    run("the canary judges nothing", "the canary is called")
for part, check in (
    ("default_dtype", "the default dtype is in the key"),
    ("autocast_state", "the dtype of autocast is in the key"),
    ("cpp_runtime_thread_count", "the number of threads is in the key"),
):
    with left_out(part):
        run(part, check)
with mock.patch.object(probe.state.kinds["inductor"], "_used", UsedFiles()):
    run("nothing is recorded", "every file is captured")
with mock.patch.object(imports._Guarded, "__call__", without_keywords):
    run("wrappers have fixed parameters", "hooks pass arguments on")
with mock.patch.object(imports, "wrap", return_value=True):
    run("hooks are not put in place", "hooks pass arguments on")
probe.state.disarm()
run("nothing is hooked", "compiles are counted")
print(json.dumps(reasons))
