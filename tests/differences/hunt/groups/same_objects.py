"""Cases in which two names lead to one object on one side, and to two equal objects on the other."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ..case import Case

_OBJECTS = {
    "classes": "def made():\n    class A:\n        v = 2.0\n    return A\n",
    "classes with a base": "def made():\n    class A(enum.Enum):\n        V = 2.0\n    return A\n",
    "functions": "def made():\n    def f():\n        return 2.0\n    return f\n",
    "lambdas": "made = lambda: lambda: 2.0\n",
    "objects": "class A:\n    v = 2.0\nmade = A\n",
    "sentinels": "made = object\n",
    "lists": "made = lambda: [2.0]\n",
    "dicts": "made = lambda: {'v': 2.0}\n",
    "sets": "made = lambda: {2}\n",
    "deques": "made = lambda: collections.deque([2.0])\n",
    "modules": "made = nn.Identity\n",
    "Python modules": "made = lambda: types.ModuleType('made')\n",
}
_WAYS = {
    "is": "ONE is OTHER",
    "is, in a list": "L[0] is OTHER",
    "is, in a dict": "D['v'] is OTHER",
    "is, of an attribute": "HOLDER.v is OTHER",
    "is, of a default": "same()",
}
_BOTH = """\
ONE = made()
OTHER = made() if CHANGED else ONE
L, D, HOLDER = [ONE], {'v': ONE}, types.SimpleNamespace(v=ONE)
def same(v=ONE):
    return v is OTHER
"""
_WRITES = {
    "a list": ("[1.0]", "two.append(1.0)", "float(len(one))"),
    "a dict": ("{'v': 2.0}", "two['v'] = 3.0", "one['v']"),
    "a set": ("{1}", "two.add(2)", "float(len(one))"),
    "an object": ("types.SimpleNamespace(v=2.0)", "two.v = 3.0", "one.v"),
    "a module": ("attribute(nn.Identity())", "two.v = 3.0", "one.v"),
    "a list of tensors": ("[ramp(4, 8)]", "two[0] = x + 1", "one[0]"),
}
_CLASSES = {
    "isinstance": ("A1()", "isinstance(B, A1)"),
    "type is": ("A1()", "type(B) is A1"),
    "type as a key": ("A1()", "type(B) in {A1: 1}"),
    "isinstance of a base": ("type('S', (A1,), {})()", "isinstance(B, A1)"),
    "issubclass": ("type('S', (A1,), {})", "issubclass(B, A1)"),
    "a bound method's object": ("A1().f", "isinstance(B.__self__, A1)"),
}


def of_same_objects(_: random.Random) -> Iterator[Case]:
    """Yield a case for each kind of object and each way to see that two are one."""
    for what, made in _OBJECTS.items():
        for way, test in _WAYS.items():
            program = f"def program(x):\n    return x * (2.0 if {test} else 3.0) + SALT\n"
            yield Case("same objects", f"{way}, of {what}", made + _BOTH + program)
    for what, (made, write, read) in _WRITES.items():
        setup = "def attribute(one):\n    one.v = 2.0\n    return one\n"
        program = f"def program(x, one, two):\n    {write}\n    return x * {read} + SALT\n"
        call = f"    one = {made}\n    return call(ramp(4, 8), one, {made} if CHANGED else one)\n"
        yield Case("same objects", f"write to {what}", f"{setup}{program}def run(call):\n{call}")
    classes = "def made():\n    class A:\n        def f(self):\n            return 1.0\n    return A\n"
    for way, (made, test) in _CLASSES.items():
        text = f"{classes}A1 = made()\nB = {made}\nif CHANGED:\n    A1 = made()\n"
        program = f"def program(x):\n    return x * (2.0 if {test} else 3.0) + SALT\n"
        yield Case("same objects", f"{way}, of two equal classes", text + program)
