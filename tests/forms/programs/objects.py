"""Forms of what a traced function reads: hooks, configurations, classes, the interpreter's modules."""

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import logging
import os
import random
import warnings

import torch
from torch import nn

from .form import Small, form, values

HOOKS, READS, SUBCLASSES = "hooks of modules", "what a function reads", "subclasses of tensors"


def added(module, arguments, output):
    return output + 1


def changed_input(module, arguments):
    return (arguments[0] * 2,)


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, module, arguments, output):
        return output * self.factor

    def method(self, module, arguments, output):
        return output * self.factor + 1


class Hooked(Small):
    pass


def with_hook(register):
    model = type("Hooked", (Hooked,), {})()
    register(model.linear)
    with torch.no_grad():
        return torch.compile(model)(values(4, 8))


@form(HOOKS)
def forward_hook():
    """a function as a forward hook"""
    return with_hook(lambda module: module.register_forward_hook(added))


@form(HOOKS)
def forward_pre_hook():
    """a function as a forward pre-hook"""
    return with_hook(lambda module: module.register_forward_pre_hook(changed_input))


@form(HOOKS)
def lambda_hook():
    """a lambda as a forward hook"""
    return with_hook(lambda module: module.register_forward_hook(lambda *call: call[-1].sin()))


@form(HOOKS)
def method_hook():
    """a method of an object as a forward hook"""
    return with_hook(lambda module: module.register_forward_hook(Scaled(3.0).method))


@form(HOOKS)
def object_hook():
    """an object of a class as a forward hook"""
    return with_hook(lambda module: module.register_forward_hook(Scaled(3.0)))


@form(HOOKS)
def partial_hook():
    """`functools.partial` as a forward hook"""
    return with_hook(lambda module: module.register_forward_hook(functools.partial(scale_by, factor=2.0)))


def scale_by(module, arguments, output, factor):
    return output * factor


@form(HOOKS)
def hook_of_compiled():
    """a hook of the compiled model itself"""
    model = type("Hooked", (Hooked,), {})()
    model.register_forward_hook(added)
    with torch.no_grad():
        return torch.compile(model)(values(4, 8))


class Registry(nn.Module):
    """Calls a class that it finds in a dictionary."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return ACTIVATIONS["gelu"]()(self.linear(x))


ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}


@form(READS)
def class_in_dictionary():
    """a dictionary with classes (ACT2FN)"""
    with torch.no_grad():
        return torch.compile(Registry())(values(4, 8))


class Config:
    def __init__(self):
        self.eps, self.use_bias, self.layers = 1e-5, True, [1, 2, 3]
        self.activation = "gelu"


CONFIG = Config()


class Configured(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.linear = config, nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x) + self.config.eps if self.config.use_bias else x
        for number in self.config.layers:
            y = y * number
        return getattr(nn.functional, self.config.activation)(y)


@form(READS)
def configuration():
    """a configuration object of the model"""
    with torch.no_grad():
        return torch.compile(Configured(Config()))(values(4, 8))


class SameConfig(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.linear = config, nn.Linear(8, 8)

    def forward(self, x):
        same = self.config is CONFIG
        return self.linear(x) * (2 if same else 3)


@form(READS)
def identity_of_configuration():
    """`self.config is CONFIG`, an object of the program compared by identity"""
    with torch.no_grad():
        return torch.compile(SameConfig(CONFIG))(values(4, 8))


def reads_global(x):
    return x @ x.T * CONFIG.eps + len(ACTIVATIONS)


@form(READS)
def global_object():
    """an object in a global variable"""
    return torch.compile(reads_global)(values(4, 8))


def reads_environment(x):
    return x @ x.T * (2 if os.environ.get("FORMS_SWITCH") == "1" else 3)


@form(READS)
def environment():
    """a variable of the environment"""
    return torch.compile(reads_environment)(values(4, 8))


log = logging.getLogger("forms")


def logs(x):
    log.debug("a line %s", x.shape)
    if x.dim() != 2:
        warnings.warn("two dimensions are expected", stacklevel=2)
    return x @ x.T + 21


@form(READS)
def logging_and_warnings():
    """a logger, and `warnings.warn` in a branch that does not run"""
    return torch.compile(logs)(values(4, 8))


def warns(x):
    warnings.warn("always", stacklevel=2)
    return x @ x.T + 22


@form(READS)
def warning():
    """`warnings.warn`"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.compile(warns)(values(4, 8))


class Way(enum.Enum):
    FIRST = 1
    SECOND = 2


@dataclasses.dataclass
class Output:
    one: torch.Tensor
    other: torch.Tensor


def makes_dataclass(x, way):
    return Output(x @ x.T, x.T @ x) if way is Way.FIRST else Output(x, x)


@form(READS)
def enum_and_dataclass():
    """an enum as an argument, a dataclass as output"""
    made = torch.compile(makes_dataclass)(values(4, 8), Way.FIRST)
    return [made.one, made.other]


Named = collections.namedtuple("Named", "one other")


def makes_named(x):
    return Named(x @ x.T, x.sin())


@form(READS)
def named_tuple():
    """a `namedtuple` as output"""
    return [*torch.compile(makes_named)(values(4, 8))]


def reads_named(pair):
    return pair.one @ pair.other.T


@form(READS)
def named_tuple_as_input():
    """a `namedtuple` as an argument"""
    return torch.compile(reads_named)(Named(values(4, 8), values(4, 8)))


def containers(x):
    counts = collections.OrderedDict(a=1, b=2)
    more = collections.defaultdict(list)
    for name, (first, second) in zip(counts, itertools.product((1, 2), (3,)), strict=True):
        more[name].append(x * first + second)
    total = sum(functools.reduce(lambda a, b: a @ b.T, more[name] * 2) for name in sorted(more))
    return total + sum(counts.values())


@form(READS)
def standard_containers():
    """`collections`, `itertools`, `functools.reduce`"""
    return torch.compile(containers)(values(4, 8))


@functools.lru_cache
def table(size):
    return size * 2


def cached(x):
    return x @ x.T * table(x.shape[0])


@form(READS)
def lru_cache():
    """`functools.lru_cache` on a helper"""
    return torch.compile(cached)(values(4, 8))


@contextlib.contextmanager
def scope():
    yield 3


def in_scope(x):
    with scope() as factor:
        return x @ x.T * factor


@form(READS)
def context_manager():
    """`contextlib.contextmanager` of the program"""
    return torch.compile(in_scope)(values(4, 8))


class Counting(Small):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


@form(READS)
def counter():
    """a model that counts its calls"""
    model = torch.compile(Counting())
    with torch.no_grad():
        return [model(values(4, 8)) for _ in range(3)]


class Property(Small):
    @property
    def scale(self):
        return 0.5

    def __getattr__(self, name):
        return 2.0 if name == "bonus" else super().__getattr__(name)

    def forward(self, x):
        return super().forward(x) * self.scale * self.bonus


@form(READS)
def property_and_getattr():
    """a property, and `__getattr__` of a module"""
    with torch.no_grad():
        return torch.compile(Property())(values(4, 8))


class Cached(Small):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(8, 8))

    def forward(self, x):
        self.table.add_(x.T @ x)
        return x @ self.table


@form(READS)
def buffer_written():
    """a buffer that the model writes (a cache)"""
    model = torch.compile(Cached())
    with torch.no_grad():
        return [model(values(4, 8)), model(values(4, 8))]


CONSTANT = values(8, 8)


def reads_tensor(x):
    return x @ CONSTANT


@form(READS)
def global_tensor():
    """a tensor in a global variable"""
    return torch.compile(reads_tensor)(values(4, 8))


def draws(x):
    return random.random() * (x @ x.T)


@form(READS)
def python_random():
    """random numbers of Python's `random`"""
    random.seed(1)
    compiled = torch.compile(draws)
    return [compiled(values(4, 8)) for _ in range(3)]


def makes_function(x):
    y = x @ x.T
    return lambda z: z @ y


@form(READS)
def function_returned():
    """a function as output"""
    return torch.compile(makes_function)(values(4, 8))(values(4, 4))


def guarded(x):
    try:
        if x.shape[0] > 100:
            raise ValueError("too many")
        assert x.shape[1] == 8, f"{x.shape}"
        return x @ x.T + 23
    except ValueError:
        return x


@form(READS)
def exceptions():
    """`try`, `assert`, an f-string"""
    return torch.compile(guarded)(values(4, 8))


def dispatches(x, *, mask=None, scale: float = 1.0, **more):
    y = x @ x.T * scale
    if mask is not None:
        y = y.masked_fill(mask, 0)
    return {"output": y, **{name: one + 1 for name, one in more.items()}}


@form(READS)
def keyword_arguments():
    """keyword arguments, a mask, `**kwargs`"""
    mask = torch.ones(4, 4).tril() == 0
    return torch.compile(dispatches)(values(4, 8), mask=mask, scale=2.0, extra=values(2))


def generates(x):
    def parts():
        for number in range(3):
            yield x * number

    return sum(part @ part.T for part in parts())


@form(READS)
def generator():
    """a generator inside of a function"""
    return torch.compile(generates)(values(4, 8))


class Plain(torch.Tensor):
    pass


def sine(x):
    return x.sin()


@form(SUBCLASSES)
def torch_function_subclass():
    """a subclass without code as an argument"""
    return torch.compile(sine)(values(4, 8).as_subclass(Plain)).as_subclass(torch.Tensor)


class Overriding(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


def cosine(x):
    return x.cos()


@form(SUBCLASSES)
def torch_function_override():
    """a subclass with `__torch_function__`"""
    return torch.compile(cosine)(values(4, 8).as_subclass(Overriding)).as_subclass(torch.Tensor)


class Holder(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Holder(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        flat = torch.utils._pytree.tree_map_only(Holder, lambda one: one.inner, (args, kwargs or {}))
        out = function(*flat[0], **flat[1])
        return torch.utils._pytree.tree_map_only(torch.Tensor, Holder, out)


def held(x):
    return (x * 2).sin()


@form(SUBCLASSES)
def torch_dispatch_subclass():
    """a subclass with `__torch_dispatch__`"""
    return torch.compile(held)(Holder(values(4, 8))).inner


def jagged(x):
    return x * 2 + 1


@form(SUBCLASSES)
def nested_tensor():
    """a jagged nested tensor"""
    nested = torch.nested.nested_tensor([values(2, 8), values(3, 8)], layout=torch.jagged)
    return torch.compile(jagged)(nested).values()


class Made(collections.OrderedDict):
    def __init__(self, hidden):
        super().__init__()
        self["hidden"] = hidden
        self.hidden = hidden


@form(READS)
def made_dictionary():
    """an output of a class of dictionaries, with `fullgraph=True`"""

    @torch.compile(fullgraph=True)
    def forward(x):
        output = Made(x.sin())
        output["more"] = output["hidden"] * 2
        return output

    return list(forward(values(4, 8)).values())
