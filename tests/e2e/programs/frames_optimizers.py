"""Run compiled steps of optimizers: ``frames_optimizers.py compile|record|serve BUNDLE KEY NAME …``.

A service runs each in a child of its own. Prints as JSON for each what was traced and compiled, why, and how
far the parameters are from eager's."""

import contextlib
import json
import os
import sys

import recorded_session

import cachesvc_client
from cachesvc_client.process.process import process

what, bundle, key, *names = sys.argv[1:]
session = recorded_session.begin(what, bundle)

import torch  # noqa: E402
from torch.optim import SGD, AdamW  # noqa: E402

torch.set_num_threads(1)
assert what == "compile" or cachesvc_client.wait(60)


def values(*shape):
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def model_of(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to(dtype)


def adamw(model, **options):
    return AdamW(model.parameters(), **{"lr": 1e-2, **options})


def groups(model, **of_second):
    first, second = model
    return AdamW([{"params": first.parameters()}, {"params": second.parameters(), **of_second}], lr=1e-2)


class Other(AdamW):
    """Has the name and the values of another class, and its own way to begin."""

    def _init_group(self, group, *lists):
        is_new = not self.state
        answer = super()._init_group(group, *lists)
        for state in self.state.values() if is_new else ():
            state["exp_avg"].add_(1)
        return answer


def restored(model, **options):
    """Return an optimizer that goes on from a checkpoint."""
    optimizer = adamw(model, **options)
    grow(model)
    optimizer.step()
    saved, again = optimizer.state_dict(), adamw(model, **options)
    again.load_state_dict(saved)
    return again


def with_steps_in_double(model):
    optimizer = restored(model)
    for state in optimizer.state.values():
        state["step"] = state["step"].double()
    return optimizer


def triple(optimizer, *_):
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad.mul_(3)


def with_hook(model):
    optimizer = adamw(model)
    optimizer.register_step_pre_hook(triple)
    return optimizer


def with_note(model):
    optimizer = adamw(model)
    optimizer.note = object()
    return optimizer


def with_other_way_to_begin(model):
    """Return an optimizer whose class is the same, and one method of its own another one."""
    optimizer = adamw(model)
    begin = optimizer._init_group

    def with_ones(group, *lists):
        is_new = not optimizer.state
        answer = begin(group, *lists)
        for state in optimizer.state.values() if is_new else ():
            state["exp_avg"].add_(1)
        return answer

    optimizer._init_group = with_ones
    return optimizer


def grow(model, transposed=False, without=()):
    for number, parameter in enumerate(model.parameters()):
        gradient = values(*parameter.shape).to(parameter.dtype)
        if transposed and gradient.dim() == 2:
            gradient = gradient.t().contiguous().t()
        parameter.grad = None if number in without else gradient


MADE = {
    "base": adamw,
    "lr": lambda model: adamw(model, lr=2e-2),
    "lr_in_tensor": lambda model: adamw(model, lr=torch.tensor(1e-2)),
    "betas": lambda model: adamw(model, betas=(0.8, 0.999)),
    "weight_decay": lambda model: adamw(model, weight_decay=0.3),
    "amsgrad": lambda model: adamw(model, amsgrad=True),
    "foreach": lambda model: adamw(model, foreach=True),
    "subclass": lambda model: Other(model.parameters(), lr=1e-2),
    "groups": groups,
    "lr_of_group": lambda model: groups(model, lr=5e-2),
    "checkpoint": restored,
    "steps_in_double": with_steps_in_double,
    "hook": with_hook,
    "note": with_note,
    "other_way_to_begin": with_other_way_to_begin,
    "in_double": adamw,
    "one_gradient_missing": adamw,
    "transposed_gradient": adamw,
    "sgd": lambda model: SGD(model.parameters(), lr=1e-2, momentum=0.9),
}
MODELS = {"in_double": {"dtype": torch.float64}}
GRADIENTS = {"one_gradient_missing": {"without": (1,)}, "transposed_gradient": {"transposed": True}}


def trained(name):
    """Return the parameters after three compiled steps."""
    torch._dynamo.reset()
    model = model_of(**MODELS.get(name, {}))
    optimizer = MADE[name](model)

    @torch.compile
    def step():
        optimizer.step()

    for _ in range(3):
        grow(model, **GRADIENTS.get(name, {}))
        step()
    return [parameter.detach() for parameter in model.parameters()]


def measured(name):
    answer, eager, counts = recorded_session.with_eager(lambda: trained(name))
    difference = max(float((one - other).abs().max()) for one, other in zip(answer, eager, strict=True))
    return {**counts, "difference": difference, "why": list(process().all_kinds.explain(()))}


def in_a_child(name):
    return recorded_session.in_a_child(lambda: measured(name))


with contextlib.redirect_stdout(sys.stderr):
    run = in_a_child if what == "serve" else measured
    answer = {name: run(name) for name in names or MADE}
if what != "serve":
    recorded_session.publish(session, bundle, key, whole=what == "record")
print(json.dumps({"steps": answer, "not_recorded": list(process().all_kinds.not_recorded())}))
sys.stdout.flush()
os._exit(0)
