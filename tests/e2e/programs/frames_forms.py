"""Run the programs of `frames_form_models`: ``frames_forms.py compile|record|serve BUNDLE KEY``, and
``frames_forms.py serve BUNDLE change`` with all changes.

Prints as JSON for each form what was traced and compiled, the digest of the outputs, and how far they are
from eager."""

import contextlib
import hashlib
import json
import sys

import recorded_session
import short_life

import cachesvc_client
from cachesvc_client.process.process import process

what, bundle, more = sys.argv[1:]
session = recorded_session.begin(what, bundle)

import frames_form_models as models  # noqa: E402
import torch  # noqa: E402

assert what == "compile" or cachesvc_client.wait(60)


def outputs(form):
    """Return the tensors of a form, with the same weights in every process."""
    torch.manual_seed(0)
    leaves = torch.utils._pytree.tree_leaves(models.FORMS[form]())
    return [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def measured(form):
    tensors, eager, counts = recorded_session.with_eager(lambda: outputs(form))
    return {
        **counts,
        "digest": hashlib.sha256(b"".join(one.contiguous().numpy().tobytes() for one in tensors)).hexdigest(),
        "difference": max(float((a - b).abs().max()) for a, b in zip(tensors, eager, strict=True)),
    }


forms = models.CHANGES if more == "change" else models.FORMS
if more == "change":
    for function in models.CHANGES.values():
        function()
with contextlib.redirect_stdout(sys.stderr):
    answer = {form: measured(form) for form in forms}
if what != "serve":
    recorded_session.publish(session, bundle, more, whole=what == "record")
print(json.dumps({"forms": answer, "not_recorded": list(process().all_kinds.not_recorded())}))
short_life.end()
