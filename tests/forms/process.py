"""Run the forms of a file, or some of them, in one process: ``process.py compile|record|serve BUNDLE KEY FILE
[FORM …]``.

Prints as JSON for each form what was traced and compiled, why, and how its outputs compare with eager's.
"""

import contextlib
import hashlib
import importlib
import json
import os
import sys
from pathlib import Path

what, bundle, key, file, *names = sys.argv[1:]
os.environ["FORMS_STAGE"] = what
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "e2e" / "programs"))

import recorded_session  # noqa: E402
import short_life  # noqa: E402

import cachesvc_client  # noqa: E402
from cachesvc_client.process.process import process  # noqa: E402

session = recorded_session.begin(what, bundle)

import torch  # noqa: E402
from programs import form  # noqa: E402

importlib.import_module(f"programs.{file}")
assert what == "compile" or cachesvc_client.wait(60)


def outputs(function):
    """Return the tensors of a form, with the same weights in every process."""
    torch.manual_seed(0)
    leaves = torch.utils._pytree.tree_leaves(function())
    return [leaf.detach().clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def told():
    """Return where the kind keeps why frames were not recorded, and why they were not used."""
    state = process().kinds["frames"]
    return getattr(state.recording.recorder, "refused", {}), getattr(state._replayer, "reasons", {})


def measured(function):
    refused, unused = told()
    refused.clear(), unused.clear()
    before = process().output.observer.snapshot()
    try:
        tensors = outputs(function)
    except Exception as error:  # noqa: BLE001 - a form that this torch does not run
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    after = process().output.observer.snapshot()
    torch.compiler.set_stance("force_eager")
    try:
        eager = outputs(function)
    except Exception as error:  # noqa: BLE001 - what runs compiled alone
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    finally:
        torch.compiler.set_stance("default")
    close = all(torch.allclose(a, b, rtol=1e-2, atol=1e-3) for a, b in zip(tensors, eager, strict=True))
    return {
        "traces": after.torch.traces - before.torch.traces,
        "compilations": after.compilations - before.compilations,
        "digest": hashlib.sha256(b"".join(one.float().numpy().tobytes() for one in tensors)).hexdigest(),
        "right": close and bool(tensors),
        "reasons": [*(f"{name}: {why}" for name, why in told()[0].items()), *told()[1]],
    }


with contextlib.redirect_stdout(sys.stderr):
    answer = {}
    for name, (_, function) in form.FORMS.items():
        if not names or name in names:
            print("form", name)
            answer[name] = measured(function)
if what != "serve":
    recorded_session.publish(session, bundle, key, whole=what == "record")
groups = {name: (group, function.__doc__) for name, (group, function) in form.FORMS.items()}
late = [*process().all_kinds.not_recorded()] if what == "record" else []
print(json.dumps({"forms": answer, "groups": groups, "not_recorded": late}))
short_life.end()
