"""Forms of a call: what is compiled, with which options, and who calls it."""

import contextlib
import functools
import threading

import torch
from torch import nn

from .form import Small, form, values

CALLS, OPTIONS, BREAKS = "what is compiled", "options and modes", "graph breaks"


@form(CALLS)
def module():
    """`torch.compile(model)`"""
    with torch.no_grad():
        return torch.compile(Small())(values(4, 8))


class InPlace(Small):
    def forward(self, x):
        return super().forward(x) + 1


@form(CALLS)
def module_in_place():
    """`model.compile()`"""
    model = InPlace()
    model.compile()
    with torch.no_grad():
        return model(values(4, 8))


def plain(x):
    return x @ x.T


@form(CALLS)
def function():
    """`torch.compile(function)`"""
    return torch.compile(plain)(values(4, 8))


@torch.compile
def decorated(x):
    return x @ x.T + 1


@form(CALLS)
def decorated_function():
    """`@torch.compile` on a function"""
    return decorated(values(4, 8))


class Method(Small):
    @torch.compile
    def forward(self, x):
        return self.linear(x) @ self.linear.weight + 2


@form(CALLS)
def decorated_method():
    """`@torch.compile` on `forward`"""
    with torch.no_grad():
        return Method()(values(4, 8))


class MethodInference(Small):
    @torch.inference_mode()
    @torch.compile
    def forward(self, x):
        return self.linear(x) @ self.linear.weight + 3


@form(CALLS)
def decorated_method_inference_mode():
    """the same below `@torch.inference_mode()`"""
    return MethodInference()(values(4, 8)).clone()


class Inside(Small):
    @torch.no_grad()
    def forward(self, x):
        return self.linear(x) @ self.linear.weight + 4


@form(CALLS)
def no_grad_inside():
    """`@torch.no_grad()` on a compiled `forward`"""
    return torch.compile(Inside())(values(4, 8))


class Bound(Small):
    def score(self, x):
        return self.linear(x) @ self.linear.weight + 5


@form(CALLS)
def bound_method():
    """`torch.compile(model.method)`"""
    with torch.no_grad():
        return torch.compile(Bound().score)(values(4, 8))


@form(CALLS)
def a_lambda():
    """`torch.compile(lambda …)`"""
    return torch.compile(lambda x: x @ x.T + 6)(values(4, 8))


@form(CALLS)
def closure():
    """a nested function that reads a variable and a model of its outer function"""
    scale, model = 2.0, nn.Linear(8, 8)

    @torch.compile
    def inner(x):
        return scale * model(x)

    with torch.no_grad():
        return inner(values(4, 8))


def powered(x, times):
    for _ in range(times):
        x = x @ x
    return x


@form(CALLS)
def partial():
    """`torch.compile(functools.partial(…))`"""
    return torch.compile(functools.partial(powered, times=2))(values(4, 4))


class Callable:
    def __init__(self):
        self.weight = values(8, 8)

    def __call__(self, x):
        return x @ self.weight


@form(CALLS)
def callable_object():
    """an object with `__call__`, which is no module"""
    return torch.compile(Callable())(values(4, 8))


class Static:
    @staticmethod
    @torch.compile
    def static(x):
        return x @ x.T + 7

    @classmethod
    def of_class(cls, x):
        return cls.static(x) + 1


@form(CALLS)
def static_method():
    """a static method, and a class method that is compiled"""
    return [Static.static(values(4, 8)), torch.compile(Static.of_class)(values(3, 8))]


class Inner(Small):
    pass


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.compile(Inner())

    def forward(self, x):
        return self.inner(x.sin()) + 1


@form(CALLS)
def nested_compile():
    """a compiled model that calls a compiled one"""
    with torch.no_grad():
        return torch.compile(Outer())(values(4, 8))


@form(CALLS)
def function_of_torch():
    """`torch.compile(torch.nn.functional.gelu)`"""
    return torch.compile(torch.nn.functional.gelu)(values(4, 8))


class InThread(Small):
    def forward(self, x):
        return super().forward(x) + 8


@form(CALLS)
def threads():
    """two threads that call one compiled model, one after the other"""
    model, outputs = torch.compile(InThread()), []

    def call():
        with torch.no_grad():
            outputs.append(model(values(4, 8)))

    for _ in range(2):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    return outputs


class AtOnce(Small):
    def forward(self, x):
        return super().forward(x) + 9


@form(CALLS)
def threads_at_once():
    """four threads at once"""
    model, outputs = torch.compile(AtOnce()), []

    def call():
        with torch.no_grad():
            outputs.append(model(values(4, 8)))

    running = [threading.Thread(target=call) for _ in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return outputs


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Small() for _ in range(3))
        self.heads = nn.ModuleDict({"a": nn.Linear(8, 2), "b": nn.Linear(8, 3)})

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = block(x) * (number + 1)
        return {name: head(x) for name, head in self.heads.items()}


@form(CALLS)
def module_lists():
    """`ModuleList`, `ModuleDict`, outputs in a dictionary"""
    with torch.no_grad():
        return torch.compile(Blocks())(values(4, 8))


class Region(Small):
    def forward(self, x):
        return super().forward(x) + 16


@form(CALLS)
def regional():
    """each block compiled by itself"""
    model = Blocks()
    model.blocks = nn.ModuleList(Region() for _ in range(3))
    for block in model.blocks:
        block.compile()
    with torch.no_grad():
        return model(values(4, 8))


class Whole(Small):
    def forward(self, x):
        return super().forward(x) + 10


@form(OPTIONS)
def fullgraph():
    """`fullgraph=True`"""
    with torch.no_grad():
        return torch.compile(Whole(), fullgraph=True)(values(4, 8))


def sized(x):
    return x @ x.T + 11


@form(OPTIONS)
def dynamic():
    """`dynamic=True`, two sizes"""
    compiled = torch.compile(sized, dynamic=True)
    return [compiled(values(4, 8)), compiled(values(5, 8))]


def fixed(x):
    return x @ x.T + 12


@form(OPTIONS)
def not_dynamic():
    """`dynamic=False`, two sizes"""
    compiled = torch.compile(fixed, dynamic=False)
    return [compiled(values(4, 8)), compiled(values(5, 8))]


def growing(x):
    return x @ x.T + 13


@form(OPTIONS)
def automatic_dynamic():
    """three sizes: the second trace makes the size dynamic"""
    compiled = torch.compile(growing)
    return [compiled(values(size, 8)) for size in (4, 5, 6)]


def marked(x):
    return x @ x.T + 14


@form(OPTIONS)
def mark_dynamic():
    """`torch._dynamo.mark_dynamic`"""
    x = values(4, 8)
    torch._dynamo.mark_dynamic(x, 0)
    return torch.compile(marked)(x)


def tuned(x):
    return (x @ x.T).relu()


@form(OPTIONS)
def max_autotune():
    """`mode="max-autotune-no-cudagraphs"`"""
    return torch.compile(tuned, mode="max-autotune-no-cudagraphs")(values(16, 16))


def with_options(x):
    return (x @ x.T).relu() + 1


@form(OPTIONS)
def own_options():
    """`options={…}`"""
    return torch.compile(with_options, options={"epilogue_fusion": False})(values(8, 8))


class Cast(Small):
    def forward(self, x):
        return super().forward(x).float()


@form(OPTIONS)
def autocast():
    """autocast around the call"""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return torch.compile(Cast())(values(4, 8))


def scalar(x):
    return x * x.sum().item()


@form(OPTIONS)
def capture_scalar_outputs():
    """`capture_scalar_outputs` and `.item()`"""
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        return torch.compile(scalar)(values(4, 8))


class Bfloat(Small):
    def forward(self, x):
        return super().forward(x) + 15


@form(OPTIONS)
def bfloat16():
    """a bfloat16 model under `inference_mode`"""
    with torch.inference_mode():
        return torch.compile(Bfloat().bfloat16())(values(4, 8).bfloat16()).float().clone()


def printing(x):
    y = x @ x.T
    print("a graph break")
    return y.sin() @ y


@form(BREAKS)
def print_inside():
    """`print` inside of a function"""
    return torch.compile(printing)(values(4, 8))


class Item(Small):
    def forward(self, x):
        y = super().forward(x)
        factor = y.sum().item()
        return y * factor


@form(BREAKS)
def item():
    """`.item()` inside of a model"""
    with torch.no_grad():
        return torch.compile(Item())(values(4, 8))


class Branch(Small):
    def forward(self, x):
        y = super().forward(x)
        return y if y.sum() > 1e6 else super().forward(y)


@form(BREAKS)
def branch_with_super():
    """an `if` on a tensor in a method that calls `super()`"""
    with torch.no_grad():
        return torch.compile(Branch())(values(4, 8))


@torch.compiler.disable
def not_traced(x):
    return x + 1


def partly(x):
    return not_traced(x @ x.T) @ x


@form(BREAKS)
def disabled_part():
    """`torch.compiler.disable` on a part"""
    return torch.compile(partly)(values(4, 8))


def explicit(x):
    x = x @ x.T
    torch._dynamo.graph_break()
    return x.cos() @ x


@form(BREAKS)
def explicit_break():
    """`torch._dynamo.graph_break()`"""
    return torch.compile(explicit)(values(4, 8))


def through_numpy(x):
    y = (x @ x.T).numpy()
    return torch.from_numpy(y * 2) @ x


@form(BREAKS)
def numpy_inside():
    """NumPy inside of a function"""
    return torch.compile(through_numpy)(values(4, 8))


def within_with(x):
    with contextlib.nullcontext():
        y = x @ x.T
        print("inside a with")
        y = y @ x
    return y.sin()


@form(BREAKS)
def break_in_with():
    """a graph break inside of `with`"""
    return torch.compile(within_with)(values(4, 8))


def within_loop(x):
    for number in range(3):
        x = x @ x.T
        if number == 1:
            print("inside a loop")
    return x


@form(BREAKS)
def break_in_loop():
    """a graph break inside of a loop"""
    return torch.compile(within_loop)(values(4, 4))
