"""Be one rank of a job: ``PROGRAM [CHANGE [BUNDLE]]``, where the change is a name that the program asks for,
or ``nothing``.

With a bundle the program restores that, and `run` prints as JSON for each form what was traced and compiled,
and how far the outputs are from eager. Without one it is a script of `cachesvc warm`. FORMS: the forms to
run, if not all. A program imports this before torch."""

import contextlib
import json
import os
import sys

import short_life

import cachesvc_client
from cachesvc_client.process.process import process

change, bundle = (*sys.argv[1:], "nothing", "")[:2] if len(sys.argv) < 3 else sys.argv[1:3]
if bundle:
    cachesvc_client.attach("team/ranks", bundle=bundle)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert not bundle or cachesvc_client.wait(60), process().all_kinds.explain(())
dist.init_process_group("cpu:gloo" if change == "another_backend" else "gloo")
if change == "one_more_group":
    dist.new_group(range(ranks))


def mesh():
    """Return a mesh of all ranks."""
    if change == "turned_mesh":
        return DeviceMesh("cpu", [*reversed(range(ranks))], mesh_dim_names=("parts",))
    names = ("halves",) if change == "another_mesh_name" else ("parts",)
    return init_device_mesh("cpu", (ranks,), mesh_dim_names=names)


def run(forms, outputs, explained=lambda: process().all_kinds.explain(())):
    """Run the forms that are asked for, print the answer, and end. ``outputs``: takes the name of a form."""
    asked = os.environ.get("FORMS", "").split() or [*forms]
    with contextlib.redirect_stdout(sys.stderr):
        answer = {form: _measured(form, outputs) for form in asked}
    if bundle:
        line = {"rank": rank, "state": cachesvc_client.report().state, "forms": answer}
        line["explained"] = [*explained()]
        print(json.dumps(line) + "\n", end="", flush=True)
    dist.barrier()  # No rank ends while another rank still asks.
    dist.destroy_process_group()
    short_life.end()


def _measured(form, outputs):
    before = process().output.observer.snapshot()
    try:
        output = outputs(form)
    except Exception as error:  # noqa: BLE001 - a form that this torch does not compile
        return {"error": f"{type(error).__name__}: {error}"[:600], "traces": -1, "difference": 9.0}
    after = process().output.observer.snapshot()
    torch.compiler.set_stance("force_eager")
    eager = outputs(form)
    torch.compiler.set_stance("default")
    same = output.shape == eager.shape
    return {
        "traces": after.torch.traces - before.torch.traces,
        "compilations": after.compilations - before.compilations,
        "difference": float((output - eager).abs().max()) if same else float("inf"),
    }
