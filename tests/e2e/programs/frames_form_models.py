"""Define programs of many forms, each a function that returns tensors, and a change of most of them.

Most graphs call operators that Inductor does not generate, so that there is little to compile."""

import copy
import enum
import io
import pickle
import random
from collections import namedtuple
from dataclasses import dataclass

import frames_model
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

FORMS = {}
CHANGES = {}


def form(function):
    FORMS[function.__name__] = function
    return function


def change(function):
    """Change the form that the function is named after."""
    CHANGES[function.__name__.removeprefix("change_")] = function
    return function


def values(*shape):
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def steps(model, *inputs):
    """Return the gradients of two steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    for _ in range(2):
        model(*inputs).sum().backward()
        gradients += [one.grad.clone() for one in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return gradients


@torch.library.custom_op("frames_forms::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda _, gradient: gradient * 2)


class Operator(nn.Linear):
    def forward(self, x):
        return torch.ops.frames_forms.twice(twice(super().forward(x)))


@form
def custom_operator():
    return steps(torch.compile(Operator(8, 8)), values(4, 8))


@change
def change_custom_operator():
    twice.register_autograd(lambda _, gradient: gradient * 3)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.T @ gradient


class Function(nn.Linear):
    def forward(self, x):
        return Product.apply(x, self.weight)


@form
def autograd_function():
    return steps(torch.compile(Function(8, 8, bias=False)), values(4, 8))


@change
def change_autograd_function():
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, x.T @ gradient

    Product.backward = staticmethod(backward)


class Checkpointed(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return checkpoint(super().forward, x, use_reentrant=False).float()


@form
def checkpoint_in_autocast():
    return steps(torch.compile(Checkpointed(8, 8)), values(4, 8))


@change
def change_checkpoint_in_autocast():
    def forward(self, x):
        with torch.autocast("cpu", torch.float16):
            return checkpoint(super(Checkpointed, self).forward, x, use_reentrant=False).float()

    Checkpointed.forward = forward


class Branch(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        if y.sum() > 1e6:
            return y
        return super().forward(y)


@form
def branch():
    """Calls after the graph break a function with a free variable, that of ``super``."""
    with torch.no_grad():
        return torch.compile(Branch(8, 8))(values(4, 8))


class Marked(nn.Linear):
    pass


@form
def marked_sizes():
    model, outputs = torch.compile(Marked(8, 8).forward), []
    for size in (4, 6):
        x = values(size, 8)
        torch._dynamo.mark_dynamic(x, 0)
        outputs.append(model(x).detach())
    return outputs


def local(factor):
    class Local(nn.Linear):
        def forward(self, x):
            return factor * super().forward(x)

    return Local(8, 8)


added = 1


@form
def local_class_with_hook():
    model = local(2 if added == 1 else 3)
    model.register_forward_hook(lambda *call: call[-1] @ call[-1].T)
    with torch.no_grad():
        return torch.compile(model)(values(4, 8))


@change
def change_local_class_with_hook():
    global added
    added = 2


class Way(enum.Enum):
    FIRST = 1
    SECOND = 2


@dataclass
class Pair:
    one: torch.Tensor
    other: torch.Tensor


def pair(x, way):
    return Pair(x @ x.T, x.T @ x) if way is Way.FIRST else Pair(x, x)


@form
def enum_and_dataclass():
    made = torch.compile(pair)(values(4, 8), Way.FIRST)
    assert type(made) is Pair
    return [made.one, made.other]


@change
def change_enum_and_dataclass():
    def __init__(self, one, other):
        self.one, self.other = other, one

    Pair.__init__ = __init__


Named = namedtuple("Named", "one")


def naming(x):
    return Named(x @ x.T)


@form
def named_tuple():
    return torch.compile(naming)(values(4, 8)).one


class Symmetric(nn.Module):
    def forward(self, x):
        return x @ x.T


@form
def parametrized():
    model = nn.Linear(8, 8)
    parametrize.register_parametrization(model, "weight", Symmetric())
    return steps(torch.compile(model), values(4, 8))


@change
def change_parametrized():
    Symmetric.forward = lambda _, x: x.T @ x


class Block(nn.Linear):
    def forward(self, x):
        return super().forward(x) @ self.weight


@form
def equal_blocks():
    blocks = nn.Sequential(*(Block(8, 8) for _ in range(4)))
    for block in blocks:
        block.compile(fullgraph=True)
    with torch.no_grad():
        return blocks(values(4, 8))


@torch.compile(dynamic=True)
def decorated(x):
    return x @ x.T


class Decorated:
    times = 2

    @torch.compile(mode="max-autotune-no-cudagraphs")
    def method(self, x):
        for _ in range(self.times):
            x = x @ x.T
        return x


@form
def decorators():
    return [decorated(values(4, 8)), decorated(values(5, 8)), Decorated().method(values(4, 8))]


@change
def change_decorators():
    Decorated.times = 3


class Base(nn.Linear):
    def helped(self, x):
        return x @ x.T

    def forward(self, x):
        return self.helped(super().forward(x))


class Derived(Base):
    pass


@form
def inherited_method():
    with torch.no_grad():
        return torch.compile(Derived(8, 8))(values(4, 8))


@change
def change_inherited_method():
    Derived.helped = lambda _, x: x.T @ x


@form
def constant_of_another_module():
    return torch.compile(repeated)(values(4, 4))


def repeated(x):
    for _ in range(frames_model.SIZES["times"]):
        x = x @ x
    return x


@change
def change_constant_of_another_module():
    frames_model.SIZES["times"] = 3


def branches(x):
    return torch.cond(x.sum() > 0, lambda y: y @ y, lambda y: y @ y @ y, (x,))


@form
def condition():
    return torch.compile(branches)(values(8, 8) + 1)


class Subclass(torch.Tensor):
    pass


def product(x):
    return x.sin()


@form
def tensor_subclass():
    made = torch.compile(product)(values(8, 8).as_subclass(Subclass))
    return made.as_subclass(torch.Tensor)


@change
def change_tensor_subclass():
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super(Subclass, cls).__torch_function__(function, types, args, kwargs or {})
        return result.cos() if function is torch.Tensor.sin else result

    Subclass.__torch_function__ = classmethod(__torch_function__)


class Own(nn.Linear):
    def forward(self, x):
        return super().forward(x) @ self.weight if self.training else super().forward(x)


@form
def own_object():
    """What the user gets is PyTorch's own, before and after the first call."""
    model = Own(8, 8).eval()
    compiled, x = torch.compile(model), values(4, 8)
    with torch.no_grad():
        outputs = [compiled(x)]
        assert type(compiled).__name__ == "OptimizedModule" and compiled._orig_mod is model
        assert list(compiled.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
        assert compiled.weight is model.weight
        outputs += [torch.compile(pickle.loads(pickle.dumps(model)))(x), copy.deepcopy(compiled)(x)]
        file = io.BytesIO()
        torch.save(compiled, file)
        file.seek(0)
        outputs.append(torch.load(file, weights_only=False)(x))
        outputs.append(compiled.train()(x))
        torch.compiler.reset()
        outputs.append(compiled(x))
        with compiled.register_forward_hook(lambda *call: call[-1] + 1):
            outputs.append(compiled(x))
    return outputs


def with_random(x):
    y = x @ x.T
    return random.random() * y + random.randint(1, 5)


@form
def python_random():
    random.seed(1)
    return torch.compile(with_random)(values(4, 8))


@form
def whole_lstm():
    torch.manual_seed(0)
    with torch.no_grad():
        return torch.compile(nn.LSTM(8, 8))(values(2, 3, 8))[0]


def returning(x):
    y = x @ x.T
    return lambda z: z @ y


@form
def function_returned():
    return torch.compile(returning)(values(4, 8))(values(4, 4))
