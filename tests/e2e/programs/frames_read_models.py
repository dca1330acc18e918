"""What a traced function reads, one program for each way, and what changes it between builder and service.

Most programs multiply matrices as often as what they read says: such a graph needs no C++ compiler.
"""

import abc
import collections
import copy
import dataclasses
import enum
import functools
import importlib.metadata
import importlib.util
import os
import sys
import weakref
from pathlib import Path

import frames_model as helper
import torch
from torch import nn

X = torch.arange(9.0).reshape(3, 3) / 10 + torch.eye(3)
sys.setrecursionlimit(3000)  # Inductor sets a higher one than Python's where it compiles
RUNS, CHANGES, EVERYWHERE = {}, {}, set()
"""Programs by name; what changes them; and those whose change reaches other programs too."""


def program(function):
    RUNS[function.__name__] = function
    return function


def change(function):
    CHANGES[function.__name__.removeprefix("change_")] = function
    return function


def change_everywhere(function):
    EVERYWHERE.add(function.__name__.removeprefix("change_"))
    return change(function)


def times(x, count):
    for _ in range(count):
        x = x @ x.T
    return x


def compiled(function, *inputs):
    return torch.compile(function)(X.clone(), *inputs)


# The environment ------------------------------------------------------------------------------


@program
def absent_variable():
    return compiled(lambda x: times(x, 3 if os.environ.get("FRAMES_ABSENT") else 1))


@change
def change_absent_variable():
    os.environ["FRAMES_ABSENT"] = "1"


@program
def variable_by_getenv():
    return compiled(lambda x: times(x, int(os.getenv("FRAMES_GETENV", "1"))))


@change
def change_variable_by_getenv():
    os.environ["FRAMES_GETENV"] = "2"


@program
def variable_in_environment():
    return compiled(lambda x: times(x, 2 if "FRAMES_IN" in os.environ else 1))


@change
def change_variable_in_environment():
    os.environ["FRAMES_IN"] = ""


def count_of_variable(name):
    try:
        return int(os.environ["FRAMES_" + name])
    except KeyError:
        return 1


@program
def computed_variable():
    return compiled(lambda x: times(x, count_of_variable("COUNT")))


@change
def change_computed_variable():
    os.environ["FRAMES_COUNT"] = "2"


# The interpreter ------------------------------------------------------------------------------


@program
def recursion_limit():
    return compiled(lambda x: times(x, 2 if sys.getrecursionlimit() > 5000 else 1))


@change_everywhere
def change_recursion_limit():
    sys.setrecursionlimit(6000)


def place_package(version):
    """Put a package of a version where this process finds it."""
    Path("packages", "cachesvc_read.dist-info").mkdir(parents=True, exist_ok=True)
    Path("packages", "cachesvc_read.dist-info", "METADATA").write_text(
        f"Name: cachesvc-read\nVersion: {version}\n"
    )
    importlib.invalidate_caches()


sys.path.insert(0, os.path.abspath("packages"))
place_package("1.0")

if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):  # earlier ones break the graph there

    @program
    def version_of_a_package():
        return compiled(lambda x: times(x, len(importlib.metadata.version("cachesvc-read"))))

    @change
    def change_version_of_a_package():
        place_package("2.0.1")

    @program
    def whether_a_package_is_there():
        return compiled(lambda x: times(x, 2 if importlib.util.find_spec("cachesvc_absent") else 1))

    @change
    def change_whether_a_package_is_there():
        Path("packages").mkdir(exist_ok=True)
        Path("packages", "cachesvc_absent.py").touch()
        importlib.invalidate_caches()


class Shape(abc.ABC):  # noqa: B024
    pass


class Square:
    pass


SQUARE = Square()


@program
def abstract_class():
    return compiled(lambda x: times(x, 2 if isinstance(SQUARE, Shape) else 1))


@change
def change_abstract_class():
    Shape.register(Square)


# Functions and classes ------------------------------------------------------------------------


def raising(x, error):
    if error:
        raise ValueError("no")
    return x


@program
def function_that_raises():
    def run(x):
        try:
            return raising(x, True)
        except ValueError:
            return times(x, 2)

    return compiled(run)


@change
def change_function_that_raises():
    def raising_no_more(x, _):
        return x

    raising.__code__ = raising_no_more.__code__


def once(function):
    @functools.wraps(function)
    def run(self, x):
        return function(self, x)

    return run


def twice(function):
    @functools.wraps(function)
    def run(self, x):
        return function(self, function(self, x))

    return run


class Decorated(nn.Module):
    @once
    def forward(self, x):
        return times(x, 1)


@program
def decorator_of_method():
    return compiled(Decorated())


@change
def change_decorator_of_method():
    Decorated.forward = twice(Decorated.__dict__["forward"].__wrapped__)


class Layer(nn.Module):
    def forward(self, x):
        return times(x, 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()

    def forward(self, x):
        return self.layer(x)


@program
def method_replaced():
    return compiled(Model())


@change
def change_method_replaced():
    Layer.forward = lambda _, x: times(x, 2)


class Holder:
    size = 1


class Other:
    size = 1


@program
def equal_attributes_of_two_classes():
    return compiled(lambda x: times(times(x, Holder.size), Other.size))


@change
def change_equal_attributes_of_two_classes():
    Other.size = 2


class Plain:
    def __init__(self):
        self.holder, self.other = Holder2(), Other2()


class Holder2:
    size = 1


class Other2:
    size = 1


PLAIN = Plain()


@program
def equal_attributes_of_two_objects():
    return compiled(lambda x: times(times(x, PLAIN.holder.size), PLAIN.other.size))


@change
def change_equal_attributes_of_two_objects():
    Other2.size = 2


@dataclasses.dataclass
class Sizes:
    first: int = dataclasses.field(default=1, metadata={"times": 1})
    second: int = 2


@program
def metadata_of_a_field():
    return compiled(lambda x: times(x, dataclasses.fields(Sizes)[0].metadata["times"]))


@change
def change_metadata_of_a_field():
    made = dataclasses.make_dataclass("Sizes", [("first", int, dataclasses.field(metadata={"times": 2}))])
    Sizes.__dataclass_fields__["first"] = made.__dataclass_fields__["first"]


@dataclasses.dataclass
class Ordered:
    b: int = 1
    a: int = 2


@program
def order_of_fields():
    return compiled(lambda x: times(x, 1 if dataclasses.fields(Ordered)[0].name == "b" else 2))


@change
def change_order_of_fields():
    fields = Ordered.__dataclass_fields__
    Ordered.__dataclass_fields__ = {name: fields[name] for name in sorted(fields)}


# Objects --------------------------------------------------------------------------------------


class Singleton:
    """Answers with its one object whenever it is made, also by a pickle."""

    one = None

    def __new__(cls):
        if cls.one is None:
            cls.one = super().__new__(cls)
        return cls.one


Singleton().count = 1


@program
def singleton():
    return compiled(lambda x: times(x, Singleton.one.count))


@change
def change_singleton():
    Singleton.one.count = 2


class ByName:
    def __init__(self, count):
        self.count = count

    def __reduce__(self):
        return "BY_NAME"


BY_NAME = ByName(1)


@program
def object_by_name():
    return compiled(lambda x: times(x, BY_NAME.count))


@change
def change_object_by_name():
    BY_NAME.count = 2


class Way(enum.Enum):
    FIRST = 1
    SECOND = 2


Way.FIRST.count = 1


@program
def attribute_of_an_enum():
    return compiled(lambda x: times(x, Way.FIRST.count))


@change
def change_attribute_of_an_enum():
    Way.FIRST.count = 2


class Target:
    count = 1


TARGET = Target()
TARGET.count = 1
REFERENCE = weakref.ref(TARGET)


@program
def below_a_weak_reference():
    return compiled(lambda x: times(x, REFERENCE().count))


@change
def change_below_a_weak_reference():
    TARGET.count = 2


class Slots:
    __slots__ = ("count",)


SLOTS = Slots()
SLOTS.count = 1


@program
def slots():
    return compiled(lambda x: times(x, SLOTS.count))


@change
def change_slots():
    SLOTS.count = 2


class Computed:
    inner = 1

    @property
    def count(self):
        return self.inner


COMPUTED = Computed()


@program
def property_of_a_class():
    return compiled(lambda x: times(x, COMPUTED.count))


@change
def change_property_of_a_class():
    Computed.count = property(lambda _: 2)


class Asked:
    def __getattr__(self, name):
        return 1


ASKED = Asked()


@program
def asked_attribute():
    return compiled(lambda x: times(x, ASKED.count))


@change
def change_asked_attribute():
    Asked.__getattr__ = lambda *_: 2


class Meta(type):
    @property
    def count(cls):
        return 1


class Made(metaclass=Meta):
    pass


@program
def metaclass():
    return compiled(lambda x: times(x, Made.count))


@change
def change_metaclass():
    Meta.count = property(lambda _: 2)


class Counts(type):
    count = 1


class Counted(metaclass=Counts):
    pass


@program
def attribute_of_a_metaclass():
    return compiled(lambda x: times(x, Counted.count))


@change
def change_attribute_of_a_metaclass():
    Counts.count = 2


BEGINS = {"second": 4}


@program
def inputs_in_one_memory():
    def written(x, first, second):
        first.add_(second)
        return x * second.sum()

    memory = torch.arange(12.0)
    return compiled(written, memory[:4], memory[BEGINS["second"] :][:4])


@change
def change_inputs_in_one_memory():
    BEGINS["second"] = 0


TABLE = {"count": 1}


@program
def absent_key():
    return compiled(lambda x: times(x, TABLE.get("more", 1)))


@change
def change_absent_key():
    TABLE["more"] = 2


def count_of_table(key):
    try:
        return TABLE[key]
    except KeyError:
        return 1


@program
def absent_key_that_raises():
    return compiled(lambda x: times(x, count_of_table("raised")))


@change
def change_absent_key_that_raises():
    TABLE["raised"] = 2


def count_of_module(module, name):
    return getattr(module, name) if hasattr(module, name) else 1


@program
def absent_attribute_of_a_module():
    return compiled(lambda x: times(x, count_of_module(helper, "count")))


@change
def change_absent_attribute_of_a_module():
    helper.count = 2


class Table(collections.UserDict):
    pass


USER_TABLE = Table()


@program
def absent_key_of_an_own_mapping():
    return compiled(lambda x: times(x, USER_TABLE.get("more", 1)))


@change
def change_absent_key_of_an_own_mapping():
    USER_TABLE["more"] = 2


CACHED = {"count": 1}


@functools.lru_cache
def cached_count():
    return CACHED["count"]


@program
def cached_function():
    return compiled(lambda x: times(x, cached_count()))


@change
def change_cached_function():
    CACHED["count"] = 2
    cached_count.cache_clear()


def with_default(x, count=1):
    return times(x, count)


@program
def default_value():
    return compiled(lambda x: with_default(x))


@change
def change_default_value():
    with_default.__defaults__ = (2,)


def closed(count):
    def run(x):
        return times(x, count)

    return run


CLOSED = [closed(1)]


@program
def closure():
    return compiled(lambda x: CLOSED[0](x))


@change
def change_closure():
    CLOSED[0] = closed(2)


# torch, patched -------------------------------------------------------------------------------


class Silu(nn.Module):
    def __init__(self):
        super().__init__()
        self.act, self.norm = nn.SiLU(), nn.LayerNorm(3)

    def forward(self, x):
        return self.norm(self.act(x))


@program
def patched_functional():
    return compiled(Silu())


@change_everywhere
def change_patched_functional():
    torch.nn.functional.silu = lambda x, **_: x @ x


@program
def patched_below_a_function():
    return compiled(Silu())


@change_everywhere
def change_patched_below_a_function():
    torch.layer_norm = lambda x, *_: x @ x


@program
def patched_forward():
    torch.manual_seed(0)
    return compiled(nn.Linear(3, 3))


@change_everywhere
def change_patched_forward():
    nn.Linear.forward = lambda _, x: x @ x


@program
def patched_sequential():
    return compiled(nn.Sequential(Layer2(), Layer2()))


class Layer2(nn.Module):
    def forward(self, x):
        return times(x, 1)


@change_everywhere
def change_patched_sequential():
    nn.Sequential.forward = lambda _, x: x @ x


@program
def patched_call():
    return compiled(Model2())


class Model2(nn.Module):
    def forward(self, x):
        return times(x, 1)


@change_everywhere
def change_patched_call():
    nn.Module.__call__ = lambda self, x: self.forward(x @ x)


@program
def patched_operator():
    return compiled(lambda x: -x)


@change_everywhere
def change_patched_operator():
    torch.Tensor.__neg__ = lambda self: self @ self


@program
def swapped_functions():
    return compiled(lambda x: torch.nn.functional.relu(x))


@change_everywhere
def change_swapped_functions():
    torch.nn.functional.relu = torch.nn.functional.gelu


# An object that is copied: ``copy`` takes its identity -------------------------------------------


class Inner:
    def __init__(self):
        self.count = 1


class Settings:
    by_class = 1

    def __init__(self):
        self.inner, self.counts, self.unused = Inner(), {"first": 1}, 1


COPIED, WITH_DICT, WITH_CLASS = Settings(), Settings(), type("Mine", (Settings,), {})()


@program
def copied_settings():
    return compiled(lambda x: times(x, copy.deepcopy(COPIED).inner.count))


@change
def change_copied_settings():
    COPIED.inner.count = 3


@program
def copied_dict():
    return compiled(lambda x: times(x, sum(copy.deepcopy(WITH_DICT).counts.values())))


@change
def change_copied_dict():
    WITH_DICT.counts["second"] = 2


@program
def copied_with_class():
    return compiled(lambda x: times(x, copy.deepcopy(WITH_CLASS).by_class))


@change
def change_copied_with_class():
    type(WITH_CLASS).by_class = 3
