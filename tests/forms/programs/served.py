"""Forms that are another one in the service than in the process whose frames are recorded."""

import contextlib

import torch
from torch import nn

from .form import SERVING, Small, form, values

SERVED = "the service differs from its builder"


def other(here, builder):
    """Return what a service has, or what its builder had."""
    return here if SERVING else builder


class OfFullgraph(Small):
    def forward(self, x):
        return super().forward(x) + 31


class OfDynamic(Small):
    def forward(self, x):
        return super().forward(x) + 32


class OfErrors(Small):
    def forward(self, x):
        return super().forward(x) + 33


class OfScalars(Small):
    def forward(self, x):
        return super().forward(x) + 34


class OfGradients(Small):
    def forward(self, x):
        return super().forward(x) + 35


class OfInference(Small):
    def forward(self, x):
        return super().forward(x) + 36


class OfHook(Small):
    def forward(self, x):
        return super().forward(x) + 37


class OfWrapper(Small):
    def forward(self, x):
        return super().forward(x) + 38


class OfFunction(Small):
    def forward(self, x):
        return super().forward(x) + 39


def call(model, **options):
    with torch.no_grad():
        return torch.compile(model, **options)(values(4, 8))


@form(SERVED)
def with_fullgraph():
    """`fullgraph=True` in the service alone"""
    return call(OfFullgraph(), fullgraph=other(True, False))


@form(SERVED)
def without_dynamic():
    """`dynamic=False` in the service alone"""
    return call(OfDynamic(), dynamic=other(False, None))


@form(SERVED)
def with_suppressed_errors():
    """`suppress_errors` in the service alone"""
    with torch._dynamo.config.patch(suppress_errors=other(True, False)):
        return call(OfErrors())


@form(SERVED)
def with_scalar_outputs():
    """`capture_scalar_outputs` in the service alone"""
    with torch._dynamo.config.patch(capture_scalar_outputs=other(True, False)):
        return call(OfScalars())


@form(SERVED)
def without_gradients():
    """`requires_grad=False` on the parameters of the service alone, under `no_grad`"""
    return call(OfGradients().requires_grad_(not SERVING))


@form(SERVED)
def in_inference_mode():
    """the service calls under `inference_mode`, the builder under `no_grad`"""
    model = torch.compile(OfInference())
    with other(torch.inference_mode, torch.no_grad)():
        return model(values(4, 8)).clone()


def unchanged(module, arguments, output):
    return output + 0


@form(SERVED)
def with_hook():
    """a forward hook in the service alone"""
    model = OfHook()
    if SERVING:
        model.linear.register_forward_hook(unchanged)
    return call(model)


class Wrapper(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


@form(SERVED)
def in_wrapper():
    """the service compiles a wrapper around the model"""
    return call(other(Wrapper, lambda model: model)(OfWrapper()))


@form(SERVED)
def in_function():
    """the service compiles a function that calls the model"""
    model = OfFunction()
    return call(other(lambda x: model(x), model))


@form(SERVED)
def at_first_in_thread():
    """the service calls from another thread"""
    import threading

    outputs = []
    model = OfThread()
    target = lambda: outputs.append(call(model))  # noqa: E731
    if SERVING:
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    else:
        target()
    return outputs


class OfThread(Small):
    def forward(self, x):
        return super().forward(x) + 40


@form(SERVED)
def with_float32_precision():
    """another float32 precision in the service alone"""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(other("high", "highest"))
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_float32_matmul_precision, before)
        return call(OfPrecision())


class OfPrecision(Small):
    def forward(self, x):
        return super().forward(x) + 41
