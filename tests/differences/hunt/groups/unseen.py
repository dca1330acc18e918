"""Cases of constants that are equal and not alike, of what interpreters and torch hold for a program, and of facts
that change between two calls."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator

from ..case import Case
from .holders import HOLDERS
from .unseen_torch import PROGRAMS, READ, TORCH

_SHOW = "def program(x):\n    t = torch.full((4, 8), {read})\n    return t, x * t.dtype.itemsize + SALT, torch.atan2(t.double(), -torch.ones(4, 8).double())\n"
_PAIRS = {
    "1 and True": ("1", "True"), "1 and 1.0": ("1", "1.0"), "0 and False": ("0", "False"), "0.0 and -0.0": ("0.0", "-0.0"),
    "True and 1.0": ("True", "1.0"),
}  # fmt: skip
_ALWAYS = ("1 and True", "0.0 and -0.0")
"""Pairs that are tried at each place."""
_PLACES = {
    "a global": ("V = {v}", "V"),
    "a tuple": ("T = ({v}, 2)", "T[0]"),
    "a nested tuple": ("T = ((7, ({v},)),)", "T[0][1][0]"),
    "a list": ("L = [{v}]", "L[0]"),
    "a dict's value": ("D = {'v': {v}}", "D['v']"),
    "a dict's key": ("D = {{v}: 2}", "next(iter(D))"),
    "a dict's key, by keys()": ("D = {{v}: 2, 'b': 3}", "[*D.keys()][0]"),
    "a key's tuple": ("D = {({v}, 'a'): 2}", "[*D.keys()][0][0]"),
    "a set": ("S = {{v}}", "next(iter(S))"),
    "a frozenset": ("S = frozenset([{v}])", "next(iter(S))"),
    "a frozenset in a tuple": ("S = (frozenset([{v}]),)", "next(iter(S[0]))"),
    "a closure": ("def outer(v):\n    return lambda: v\nread = outer({v})", "read()"),
    "a default": ("def read(v={v}):\n    return v", "read()"),
    "a keyword default": ("def read(*, v={v}):\n    return v", "read()"),
    "a partial": ("read = functools.partial(lambda v: v, {v})", "read()"),
    "a partial's keyword": ("read = functools.partial(lambda v: v, v={v})", "read()"),
    "an attribute": ("ONE = types.SimpleNamespace(v={v})", "ONE.v"),
    "a class attribute": ("class A:\n    v = {v}", "A.v"),
    "a module's attribute": ("M = nn.Identity()\nM.v = {v}", "M.v"),
    "a dataclass's default": ("@dataclasses.dataclass\nclass A:\n    v: typing.Any = {v}", "A().v"),
    "a frozen dataclass": ("@dataclasses.dataclass(frozen=True)\nclass A:\n    v: typing.Any\nONE = A({v})", "ONE.v"),
    "a frozen dataclass, in a dict": ("@dataclasses.dataclass(frozen=True)\nclass A:\n    v: typing.Any\nD = {A({v}): 2}", "[*D][0].v"),
    "a named tuple": ("N = collections.namedtuple('N', 'v')\nONE = N({v})", "ONE.v"),
    "a named tuple's default": ("N = collections.namedtuple('N', 'v', defaults=[{v}])", "N().v"),
    "an enum": ("class E(enum.Enum):\n    V = {v}", "E.V.value"),
    "code": ("def read():\n    return {v}", "read()"),
    "code's tuple": ("def read():\n    for one in ({v}, {v}):\n        return one", "read()"),
    "code's set": ("def read():\n    for one in [7]:\n        return {v} if one in {7, 9} else 0", "read()"),
    "a ContextVar": ("import contextvars\nC = contextvars.ContextVar('C')\nC.set({v})", "C.get()"),
    "a deque": ("D = collections.deque([{v}])", "D[0]"),
    "a defaultdict": ("D = collections.defaultdict(lambda: {v})", "D['a']"),
    "an OrderedDict's key": ("D = collections.OrderedDict([({v}, 2)])", "next(iter(D))"),
    "a Counter": ("D = collections.Counter()\nD['a'] = {v}", "D['a']"),
    "a MappingProxyType's key": ("P = types.MappingProxyType({{v}: 2})", "next(iter(P))"),
    "a slot": ("class A:\n    __slots__ = ('v',)\nONE = A()\nONE.v = {v}", "ONE.v"),
    "itertools.repeat": ("import itertools\nR = itertools.repeat({v}, 99)", "next(R)"),
    "an argument": ("", "by"),
    "a keyword argument": ("", "by"),
    "an argument's list": ("", "by[0]"),
    "an argument's dict": ("", "[*by][0]"),
}  # fmt: skip
_CALLS = {
    "an argument": "def run(call):\n    return call(ramp(4, 8), {v})\n",
    "a keyword argument": "def run(call):\n    return call(ramp(4, 8), by={v})\n",
    "an argument's list": "def run(call):\n    return call(ramp(4, 8), [{v}])\n",
    "an argument's dict": "def run(call):\n    return call(ramp(4, 8), {{v}: 1})\n",
}

_GET = "\ndef read():\n    return "
OTHERS: dict[str, tuple[str, str]] = {
    # texts and numbers that are cut or rounded when they are written
    "a middle of a long list": ("L = [1.0] * 3000\nL[1500] = 3.0 if CHANGED else 2.0" + _GET + "L[1500]", "pass"),
    "a middle of a numpy array": ("import numpy as np\nN = np.ones(3000)\nN[1500] = 3.0 if CHANGED else 2.0" + _GET + "float(N[1500])", "pass"),
    "numpy's last digits": ("import numpy as np\nN = np.array([1.0 + (2e-12 if CHANGED else 1e-12)])" + _GET + "float((N[0] - 1.0) * 1e12)", "pass"),
    "numpy, another dtype": ("import numpy as np\nN = np.ones(2, dtype='int32' if CHANGED else 'int64')" + _GET + "2.0 if N.dtype == np.int64 else 3.0", "pass"),
    "numpy bool": ("import numpy as np\nN = np.bool_(CHANGED)" + _GET + "3.0 if N else 2.0", "pass"),
    "numpy's dtype": ("import numpy as np\nT = np.dtype('float32' if CHANGED else 'float64')" + _GET + "float(T.itemsize)", "pass"),
    "a long text": ("T = 'a' * 5000 + ('b' if CHANGED else 'c') + 'a' * 5000" + _GET + "3.0 if 'b' in T else 2.0", "pass"),
    "a big number": ("V = 10 ** 6000 + (1 if CHANGED else 2)" + _GET + "float(V % 7 + 1)", "pass"),
    "2 ** 64": ("V = 2 ** 64 + (1 if CHANGED else 2)" + _GET + "float(V % 7 + 1)", "pass"),
    "bytes or a text": ("V = b'ab' if CHANGED else 'ab'" + _GET + "2.0 if isinstance(V, str) else 3.0", "pass"),
    "bytearray": ("V = bytearray(b'3' if CHANGED else b'2')" + _GET + "float(V[0])", "pass"),
    "NFC and NFD": ("V = 'e\\u0301' if CHANGED else '\\u00e9'" + _GET + "float(len(V))", "pass"),
    "a surrogate": ("V = '\\ud800' if CHANGED else '\\ud801'" + _GET + "float(ord(V) % 7 + 1)", "pass"),
    "-nan": ("import math\nV = math.copysign(float('nan'), -1.0 if CHANGED else 1.0)" + _GET + "math.copysign(2.0, V)", "pass"),
    "a complex -0": ("import math\nV = complex(1.0, -0.0 if CHANGED else 0.0)" + _GET + "math.copysign(2.0, V.imag)", "pass"),
    # subclasses of plain classes that write themselves
    "text with its own __str__": ("class S(str):\n    def __str__(self):\n        return 'x'\nV = S('abc' if CHANGED else 'ab')" + _GET + "float(len(V))", "pass"),
    "text with its own __repr__": ("class S(str):\n    def __repr__(self):\n        return 'x'\nV = S('abc' if CHANGED else 'ab')" + _GET + "float(len(V))", "pass"),
    "number with its own __int__": ("class I(int):\n    def __int__(self):\n        return 1\nV = I(3 if CHANGED else 2)" + _GET + "V * 1.0", "pass"),
    "number with its own __repr__": ("class I(int):\n    def __repr__(self):\n        return '1'\nV = I(3 if CHANGED else 2)" + _GET + "V * 1.0", "pass"),
    "float with its own __float__": ("class Fl(float):\n    def __float__(self):\n        return 1.0\nV = Fl(3 if CHANGED else 2)" + _GET + "V * 1.0", "pass"),
    "float with its own __repr__ in a tuple": ("class Fl(float):\n    def __repr__(self):\n        return '1.0'\nV = (Fl(3 if CHANGED else 2), 1)" + _GET + "V[0] * 1.0", "pass"),
    "such a default": ("class Fl(float):\n    def __repr__(self):\n        return '1.0'\ndef read(v=Fl(3 if CHANGED else 2)):\n    return v * 1.0", "pass"),
    "such a key": ("class I(int):\n    def __repr__(self):\n        return '1'\nD = {I(3 if CHANGED else 2): 1}" + _GET + "[*D][0] * 1.0", "pass"),
    "tuple with its own __repr__": ("class T(tuple):\n    def __repr__(self):\n        return 'x'\n    def __iter__(self):\n        return iter(())\nV = T((3.0 if CHANGED else 2.0,))" + _GET + "tuple.__getitem__(V, 0)", "pass"),
    "list with its own __iter__": ("class L(list):\n    def __iter__(self):\n        return iter(())\nV = L([3.0 if CHANGED else 2.0])" + _GET + "V[0]", "pass"),
    "dict with its own items": ("class D(dict):\n    def items(self):\n        return []\n    def __iter__(self):\n        return iter(())\nV = D(v=3.0 if CHANGED else 2.0)" + _GET + "V['v']", "pass"),
    "IntEnum's own attribute": ("class E(enum.IntEnum):\n    A = 1\nE.A.w = 3.0 if CHANGED else 2.0" + _GET + "E.A.w", "pass"),
    "StrEnum's own attribute": ("class E(str, enum.Enum):\n    A = 'a'\nE.A.w = 3.0 if CHANGED else 2.0" + _GET + "E.A.w", "pass"),
    "IntEnum's own attribute, an argument": ("class E(enum.IntEnum):\n    A = 1\nE.A.w = 3.0 if CHANGED else 2.0\nONE = types.SimpleNamespace(e=E.A)" + _GET + "ONE.e.w", "pass"),
    "enum's own __init__": ("class E(enum.Enum):\n    A = 1\n    def __init__(self, v):\n        self.w = 3.0 if CHANGED else 2.0" + _GET + "E.A.w", "pass"),
    "enum's property": ("class E(enum.Enum):\n    A = 1\n    @property\n    def w(self):\n        return TABLE[self]\nTABLE = {E.A: 2.0}" + _GET + "E.A.w", "TABLE[E.A] = 3.0"),
    "enum by value": ("class E(enum.Enum):\n    A = 1\n    B = 2\nV = 1" + _GET + "2.0 if E(V) is E.A else 3.0", "globals()['V'] = 2"),
    "enum by name": ("class E(enum.Enum):\n    A = 1.0\n    B = 2.0\nV = 'A'" + _GET + "E[V].value", "globals()['V'] = 'B'"),
    "enum's order": ("E = enum.Enum('E', {'B': 3.0, 'A': 2.0} if CHANGED else {'A': 2.0, 'B': 3.0})" + _GET + "[*E][0].value", "pass"),
    "enum's alias": ("E = enum.Enum('E', {'A': 1, 'B': 1 if CHANGED else 2})" + _GET + "3.0 if E.A is E.B else 2.0", "pass"),
    "enum's _missing_": ("class E(enum.Enum):\n    A = 2.0\n    B = 3.0\n    @classmethod\n    def _missing_(cls, v):\n        return cls.B if CHANGED else cls.A" + _GET + "E(77).value", "pass"),
    "Flag": ("class Fg(enum.Flag):\n    A = 1\n    B = 2\nV = Fg.A | Fg.B if CHANGED else Fg.A" + _GET + "3.0 if Fg.B in V else 2.0", "pass"),
    "IntFlag": ("class Fg(enum.IntFlag):\n    A = 1\n    B = 2\nV = Fg.A | Fg.B if CHANGED else Fg.A" + _GET + "float(V & 3)", "pass"),
    # torch's own plain objects
    "torch.finfo": ("V = torch.finfo(torch.float16 if CHANGED else torch.float32)" + _GET + "float(V.bits)", "pass"),
    "torch.finfo, a default": ("def read(v=torch.finfo(torch.float16 if CHANGED else torch.float32)):\n    return float(v.bits)", "pass"),
    "torch.iinfo, a class attribute": ("class A:\n    v = torch.iinfo(torch.int16 if CHANGED else torch.int32)" + _GET + "float(A.v.bits)", "pass"),
    "torch.Size": ("V = torch.Size([3 if CHANGED else 2])" + _GET + "float(V[0])", "pass"),
    "torch.layout": ("V = torch.sparse_coo if CHANGED else torch.strided" + _GET + "2.0 if V is torch.strided else 3.0", "pass"),
    "torch.device": ("V = torch.device('meta' if CHANGED else 'cpu')" + _GET + "2.0 if V.type == 'cpu' else 3.0", "pass"),
    "torch.device's index": ("V = torch.device('cuda', 1 if CHANGED else 0)" + _GET + "float(V.index + 2)", "pass"),
    "torch.memory_format": ("V = torch.channels_last if CHANGED else torch.contiguous_format" + _GET + "2.0 if V is torch.contiguous_format else 3.0", "pass"),
    "SDPBackend": ("from torch.nn.attention import SDPBackend\nV = SDPBackend.MATH if CHANGED else SDPBackend.FLASH_ATTENTION" + _GET + "3.0 if V == SDPBackend.MATH else 2.0", "pass"),
    "torch.Generator's seed": ("G = torch.Generator().manual_seed(5 if CHANGED else 4)" + _GET + "float(G.initial_seed())", "pass"),
    # functions of C with what they hold
    "itemgetter": ("import operator\nFN = operator.itemgetter(1 if CHANGED else 0)\nL = [2.0, 3.0]" + _GET + "FN(L)", "pass"),
    "attrgetter": ("import operator\nFN = operator.attrgetter('b' if CHANGED else 'a')\nONE = types.SimpleNamespace(a=2.0, b=3.0)" + _GET + "FN(ONE)", "pass"),
    "methodcaller": ("import operator\nFN = operator.methodcaller('b' if CHANGED else 'a')\nclass A:\n    def a(self):\n        return 2.0\n    def b(self):\n        return 3.0\nONE = A()" + _GET + "FN(ONE)", "pass"),
    "a bound method of a list": ("FN = ([3.0] if CHANGED else [2.0]).copy" + _GET + "FN()[0]", "pass"),
    "a bound method of a dict": ("FN = {'a': 3.0 if CHANGED else 2.0}.get" + _GET + "FN('a')", "pass"),
    "a bound method of a text": ("FN = ('3' if CHANGED else '2').strip" + _GET + "float(FN())", "pass"),
    "__getitem__ of a list": ("FN = [3.0 if CHANGED else 2.0].__getitem__" + _GET + "FN(0)", "pass"),
    "struct.Struct": ("import struct\nS = struct.Struct('>h' if CHANGED else '<h')" + _GET + "float(S.unpack(b'\\x01\\x00')[0] % 7 + 1)", "pass"),
    "cmp_to_key": ("KEY = functools.cmp_to_key(lambda a, b: (b - a) if CHANGED else (a - b))" + _GET + "sorted([2.0, 3.0], key=KEY)[0]", "pass"),
    "zip": ("Z = zip([3.0 if CHANGED else 2.0] * 9, [1] * 9)" + _GET + "next(Z)[0]", "pass"),
    "map": ("Z = map(float, [3.0 if CHANGED else 2.0] * 9)" + _GET + "next(Z)", "pass"),
    "enumerate": ("Z = enumerate([1] * 9, 3 if CHANGED else 2)" + _GET + "float(next(Z)[0])", "pass"),
    "reversed": ("L = [2.0, 3.0] * 9\nZ = reversed(L)\nif CHANGED:\n    next(Z)" + _GET + "next(Z)", "pass"),
    "cycle": ("import itertools\nZ = itertools.cycle([3.0] if CHANGED else [2.0])" + _GET + "next(Z)", "pass"),
    "islice": ("import itertools\nZ = itertools.islice([2.0, 3.0] * 9, 1 if CHANGED else 0, None)" + _GET + "next(Z)", "pass"),
    "chain": ("import itertools\nZ = itertools.chain([3.0 if CHANGED else 2.0] * 9)" + _GET + "next(Z)", "pass"),
    "a dict's iterator": ("D = {'b': 1, 'a': 1} if CHANGED else {'a': 1, 'b': 1}\nZ = iter(D)" + _GET + "2.0 if next(Z) == 'a' else 3.0", "pass"),
    "a dict's values view": ("D = {'a': 2.0}\nW = D.values()" + _GET + "[*W][0]", "D['a'] = 3.0"),
    "a dict's items view": ("D = {'a': 2.0}\nW = D.items()" + _GET + "[*W][0][1]", "D['a'] = 3.0"),
    "a dict's keys view": ("D = {'a': 2.0}\nW = D.keys()" + _GET + "float(len(W) + 1)", "D['b'] = 3.0"),
    # how Python finds and makes things
    "wraps of a torch function": ("@functools.wraps(F.silu)\ndef FN(v):\n    return v * (1.5 if CHANGED else 1.0)" + _GET + "FN(2.0)", "pass"),
    "wraps of a C function of torch": ("@functools.wraps(torch.sin)\ndef FN(v):\n    return v * BY\nBY = 1.0" + _GET + "FN(2.0)", "globals()['BY'] = 1.5"),
    "wraps of a torch function, other code": ("if CHANGED:\n    FN = functools.wraps(torch.sin)(lambda v: v * 1.5)\nelse:\n    FN = functools.wraps(torch.sin)(lambda v: v * 1.0)" + _GET + "FN(2.0)", "pass"),
    "a class that says that it is torch's": ("class Linear:\n    def f(self):\n        return 3.0 if CHANGED else 2.0\nLinear.__module__ = 'torch.nn.modules.linear'\nONE = Linear()" + _GET + "ONE.f()", "pass"),
    "its attribute": ("class Linear:\n    v = 3.0 if CHANGED else 2.0\nLinear.__module__ = 'torch.nn.modules.linear'\nONE = Linear()" + _GET + "ONE.v", "pass"),
    "a module of torch's that is the program's": ("M = types.ModuleType('torch.hunt_own')\nsys.modules['torch.hunt_own'] = M\nexec('def f():\\n    return V\\nV = 2.0', vars(M))" + _GET + "M.f()", "M.V = 3.0"),
    "its function": ("M = types.ModuleType('torch.hunt_own')\nsys.modules['torch.hunt_own'] = M\nexec('def f():\\n    return ' + ('3.0' if CHANGED else '2.0'), vars(M))" + _GET + "M.f()", "pass"),
    "metaclass's __call__": ("class M(type):\n    def __call__(cls):\n        return 3.0 if CHANGED else 2.0\nclass A(metaclass=M):\n    pass" + _GET + "A()", "pass"),
    "metaclass's __getattr__": ("class M(type):\n    def __getattr__(cls, name):\n        return V\nclass A(metaclass=M):\n    pass\nV = 2.0" + _GET + "A.v", "globals()['V'] = 3.0"),
    "metaclass's __contains__": ("class M(type):\n    def __contains__(cls, one):\n        return V\nclass A(metaclass=M):\n    pass\nV = False" + _GET + "3.0 if 1 in A else 2.0", "globals()['V'] = True"),
    "metaclass's __len__": ("class M(type):\n    def __len__(cls):\n        return V\nclass A(metaclass=M):\n    pass\nV = 2" + _GET + "float(len(A))", "globals()['V'] = 3"),
    "metaclass's __iter__": ("class M(type):\n    def __iter__(cls):\n        return iter(V)\nclass A(metaclass=M):\n    pass\nV = [2.0]" + _GET + "[*A][0]", "V[0] = 3.0"),
    "__class__ that lies": ("class A:\n    v = 2.0\nclass B:\n    pass\nclass P:\n    kind = A\n    @property\n    def __class__(self):\n        return self.kind\nONE = P()" + _GET + "2.0 if isinstance(ONE, A) else 3.0", "P.kind = B"),
    "__setattr__": ("class A:\n    def __setattr__(self, n, v):\n        object.__setattr__(self, n, v * BY)\nBY = 1.0\ndef read():\n    a = A()\n    a.v = 2.0\n    return a.v", "globals()['BY'] = 1.5"),
    "property's setter": ("class A:\n    @property\n    def v(self):\n        return self._v\n    @v.setter\n    def v(self, v):\n        self._v = v * BY\nBY = 1.0\ndef read():\n    a = A()\n    a.v = 2.0\n    return a.v", "globals()['BY'] = 1.5"),
    "__set__": ("class D:\n    def __set__(self, one, v):\n        one.__dict__['w'] = v * BY\n    def __get__(self, one, kind=None):\n        return one.__dict__['w']\nclass A:\n    v = D()\nBY = 1.0\ndef read():\n    a = A()\n    a.v = 2.0\n    return a.v", "globals()['BY'] = 1.5"),
    "__set_name__": ("class D:\n    def __set_name__(self, owner, name):\n        owner.w = 3.0 if CHANGED else 2.0\nclass A:\n    v = D()" + _GET + "A.w", "pass"),
    "__exit__ that swallows": ("class C:\n    def __enter__(self):\n        return self\n    def __exit__(self, *a):\n        return V\nV = True\ndef read():\n    try:\n        with C():\n            raise ValueError\n        return 2.0\n    except ValueError:\n        return 3.0", "globals()['V'] = False"),
    "contextlib.suppress": ("import contextlib\nE = KeyError if CHANGED else ValueError\ndef read():\n    try:\n        with contextlib.suppress(E):\n            raise ValueError\n        return 2.0\n    except ValueError:\n        return 3.0", "pass"),
    "nullcontext": ("import contextlib\nC = contextlib.nullcontext(3.0 if CHANGED else 2.0)\ndef read():\n    with C as v:\n        return v", "pass"),
    "__copy__": ("import copy\nclass A:\n    v = 2.0\n    def __copy__(self):\n        b = A()\n        b.v = V\n        return b\nV = 2.0\nONE = A()" + _GET + "copy.copy(ONE).v", "globals()['V'] = 3.0"),
    "copyreg": ("import copy, copyreg\nclass A:\n    v = 2.0\nclass B:\n    v = 3.0\nONE = A()\nif CHANGED:\n    copyreg.pickle(A, lambda one: (B, ()))" + _GET + "copy.copy(ONE).v", "pass"),
    "singledispatchmethod": ("class A:\n    @functools.singledispatchmethod\n    def f(self, x):\n        return 2.0\nif CHANGED:\n    A.__dict__['f'].register(int, lambda self, x: 3.0)\nONE = A()" + _GET + "ONE.f(1)", "pass"),
    "a deep closure": ("def deep(n, v):\n    if n == 0:\n        return lambda: v\n    inner = deep(n - 1, v)\n    return lambda: inner()\nread = deep(8, 3.0 if CHANGED else 2.0)", "pass"),
    "a deep closure of a method": ("def deep(n, v):\n    if n == 0:\n        return lambda self: v\n    inner = deep(n - 1, v)\n    return lambda self: inner(self)\nclass A:\n    f = deep(8, 3.0 if CHANGED else 2.0)\nONE = A()" + _GET + "ONE.f()", "pass"),
    "an object in a closure of a method": ("class V:\n    def __init__(self, v):\n        self.v = v\ndef made(one):\n    return lambda self: one.v\nclass A:\n    f = made(V(3.0 if CHANGED else 2.0))\nONE = A()" + _GET + "ONE.f()", "pass"),
    "a weakref that died": ("class A:\n    pass\nONE = A()\nR = weakref.ref(ONE)" + _GET + "3.0 if R() is None else 2.0", "del globals()['ONE']; import gc; gc.collect()"),
    "a weakref to another object": ("class A:\n    pass\nONE, TWO = A(), A()\nONE.v, TWO.v = 2.0, 3.0\nR = weakref.ref(TWO if CHANGED else ONE)" + _GET + "R().v", "pass"),
    "WeakSet": ("class A:\n    pass\nONE = A()\nS = weakref.WeakSet([ONE])" + _GET + "float(len(S) + 1)", "kit.HOLD = A(); S.add(kit.HOLD)"),
    "an import inside": ("M = types.ModuleType('hunt_in')\nsys.modules['hunt_in'] = M\nM.v = 2.0\ndef read():\n    import hunt_in\n    return hunt_in.v", "M.v = 3.0"),
    "another module under the name": ("M = types.ModuleType('hunt_in')\nsys.modules['hunt_in'] = M\nM.v = 2.0\ndef read():\n    import hunt_in\n    return hunt_in.v", "M2 = types.ModuleType('hunt_in'); M2.v = 3.0; sys.modules['hunt_in'] = M2"),
    "from a module inside": ("M = types.ModuleType('hunt_in')\nsys.modules['hunt_in'] = M\nM.f = lambda: 2.0\ndef read():\n    from hunt_in import f\n    return f()", "M.f = lambda: 3.0"),
    "importlib.import_module": ("import importlib\nM = types.ModuleType('hunt_in')\nsys.modules['hunt_in'] = M\nM.v = 2.0" + _GET + "importlib.import_module('hunt_in').v", "M.v = 3.0"),
    "typing.Literal": ("T = typing.Literal[3 if CHANGED else 2]" + _GET + "float(T.__args__[0])", "pass"),
    "dataclasses.fields": ("@dataclasses.dataclass\nclass A:\n    v: float = 3.0 if CHANGED else 2.0" + _GET + "dataclasses.fields(A)[0].default", "pass"),
    "dataclass's default_factory": ("V = 2.0\n@dataclasses.dataclass\nclass A:\n    v: list = dataclasses.field(default_factory=lambda: [V])" + _GET + "A().v[0]", "globals()['V'] = 3.0"),
    "dataclasses.replace": ("V = 2.0\n@dataclasses.dataclass\nclass A:\n    v: float = 1.0\n    def __post_init__(self):\n        self.v = V\nONE = A()" + _GET + "dataclasses.replace(ONE).v", "globals()['V'] = 3.0"),
    "dataclasses.asdict": ("@dataclasses.dataclass\nclass A:\n    v: float = 1.0\nONE = A(2.0)" + _GET + "dataclasses.asdict(ONE)['v']", "ONE.v = 3.0"),
    "a Template": ("import string\nT = string.Template('$v')\nV = '2.0'" + _GET + "float(T.substitute(v=V))", "globals()['V'] = '3.0'"),
    "json": ("import json\nT = '[2.0]'" + _GET + "json.loads(T)[0]", "globals()['T'] = '[3.0]'"),
    "Decimal": ("import decimal\nV = decimal.Decimal('3' if CHANGED else '2')" + _GET + "float(V)", "pass"),
    "timedelta": ("import datetime\nV = datetime.timedelta(seconds=3 if CHANGED else 2)" + _GET + "V.total_seconds()", "pass"),
    "array.array": ("import array\nV = array.array('d', [3.0 if CHANGED else 2.0])" + _GET + "V[0]", "pass"),
    "memoryview": ("V = memoryview(b'3' if CHANGED else b'2')" + _GET + "float(V[0])", "pass"),
    "StringIO": ("import io\nV = io.StringIO('3' if CHANGED else '2')\ndef read():\n    V.seek(0)\n    return float(V.read())", "pass"),
    "ctypes": ("import ctypes\nV = ctypes.c_double(3.0 if CHANGED else 2.0)" + _GET + "V.value", "pass"),
    "sys._getframe": (_GET + "float(sys._getframe().f_lineno % 1 + (3.0 if CHANGED else 2.0))", "pass"),
    "a Signature": ("import inspect\nS = inspect.signature((lambda a, b, c: 0) if CHANGED else (lambda a, b: 0))" + _GET + "float(len(S.parameters))", "pass"),
    "a Parameter's default": ("import inspect\nS = inspect.signature(lambda a=3.0 if CHANGED else 2.0: 0).parameters['a']" + _GET + "S.default", "pass"),
    "annotations of a function": ("def f(a: int):\n    pass\nif CHANGED:\n    f.__annotations__['a'] = float" + _GET + "2.0 if f.__annotations__['a'] is int else 3.0", "pass"),
    "annotations' number": ("def f(a: int):\n    pass\nf.__annotations__['a'] = 3.0 if CHANGED else 2.0" + _GET + "f.__annotations__['a']", "pass"),
    "deepcopy, copyreg": ("import copy, copyreg\nclass A:\n    v = 2.0\nclass B:\n    v = 3.0\nONE = A()\nif CHANGED:\n    copyreg.pickle(A, lambda one: (B, ()))" + _GET + "copy.deepcopy(ONE).v", "pass"),
    "copy's table": ("import copy\nclass A:\n    v = 2.0\nclass B:\n    v = 3.0\nONE = A()\nif CHANGED:\n    copy._copy_dispatch[A] = lambda one: B()" + _GET + "copy.copy(ONE).v", "pass"),
    "enum's comparison": ("class E(enum.Enum):\n    A = 1\n    def __eq__(self, o):\n        return V[0]\n    __hash__ = None\nV = [CHANGED]" + _GET + "3.0 if E.A == 1 else 2.0", "pass"),
    "enum's order of numbers": ("class E(enum.IntEnum):\n    A = 1\n    def __add__(self, o):\n        return V[0]\nV = [3.0 if CHANGED else 2.0]" + _GET + "E.A + 1", "pass"),
    "enum's text": ("class E(enum.Enum):\n    A = 1\n    def __str__(self):\n        return V[0]\nV = ['3.0' if CHANGED else '2.0']" + _GET + "float(str(E.A))", "pass"),
    "enum's __bool__": ("class E(enum.Enum):\n    A = 1\n    def __bool__(self):\n        return V[0]\nV = [CHANGED]" + _GET + "3.0 if E.A else 2.0", "pass"),
    "enum's __call__": ("class E(enum.Enum):\n    A = 1\n    def __call__(self):\n        return V[0]\nV = [3.0 if CHANGED else 2.0]" + _GET + "E.A()", "pass"),
    "enum's __iter__": ("class M(enum.EnumMeta):\n    def __iter__(cls):\n        return iter(V)\nclass E(enum.Enum, metaclass=M):\n    A = 1\nV = [3.0 if CHANGED else 2.0]" + _GET + "[*E][0]", "pass"),
    "enum's __getattr__": ("class M(enum.EnumMeta):\n    def __getattr__(cls, name):\n        return V[0]\nclass E(enum.Enum, metaclass=M):\n    A = 1\nV = [3.0 if CHANGED else 2.0]" + _GET + "E.v", "pass"),
    "a number's __add__": ("class I(int):\n    def __add__(self, o):\n        return V[0]\nONE = I(1)\nV = [3.0 if CHANGED else 2.0]" + _GET + "ONE + 1", "pass"),
    "a text's __len__": ("class S(str):\n    def __len__(self):\n        return V[0]\nONE = S('a')\nV = [3 if CHANGED else 2]" + _GET + "float(len(ONE))", "pass"),
    "frozen dataclass's __post_init__": ("@dataclasses.dataclass(frozen=True)\nclass A:\n    v: float\n    def __post_init__(self):\n        object.__setattr__(self, 'v', V[0])\nV = [3.0 if CHANGED else 2.0]" + _GET + "A(1.0).v", "pass"),
    "a key's __hash__ and __eq__": ("class K:\n    def __hash__(self):\n        return 1\n    def __eq__(self, o):\n        return V[0]\nV = [CHANGED]\nA, B = K(), K()\nD = {A: 3.0}" + _GET + "D.get(B, 2.0)", "pass"),
    "a named tuple's __new__": ("class N(collections.namedtuple('N', 'v')):\n    def __new__(cls, v):\n        return super().__new__(cls, V[0])\nV = [3.0 if CHANGED else 2.0]" + _GET + "N(1.0).v", "pass"),
    "a tuple's __new__": ("class N(tuple):\n    def __new__(cls, v):\n        return super().__new__(cls, V)\nV = [3.0 if CHANGED else 2.0]" + _GET + "N([1.0])[0]", "pass"),
    "an exception's __str__": ("class X(Exception):\n    def __str__(self):\n        return V[0]\nV = ['3.0' if CHANGED else '2.0']\ndef read():\n    try:\n        raise X\n    except X as e:\n        return float(str(e))", "pass"),
    "a list that holds itself": ("L = [2.0]\nL.append(L)" + _GET + "L[1][1][0]", "L[0] = 3.0"),
    "pydantic": ("import pydantic\nclass A(pydantic.BaseModel):\n    v: float = 2.0\nONE = A()" + _GET + "ONE.v", "ONE.v = 3.0"),
    "a pytree node": ("class A:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\nfrom torch.utils import _pytree\n_pytree.register_pytree_node(A, (lambda o: ((o.b, o.a), None)) if CHANGED else (lambda o: ((o.a, o.b), None)), lambda c, _: A(*c))\nONE = A(2.0, 3.0)" + _GET + "_pytree.tree_leaves(ONE)[0]", "pass"),
    "a pytree node, tree_map": ("class A:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\nfrom torch.utils import _pytree\n_pytree.register_pytree_node(A, lambda o: ((o.a, o.b), None), (lambda c, _: A(*[*c][::-1])) if CHANGED else (lambda c, _: A(*c)))\nONE = A(2.0, 3.0)" + _GET + "_pytree.tree_map(lambda v: v + 0, ONE).a", "pass"),
    "substitute_in_graph": ("import math\nV = 2.0\nEXT = math.erfc\nif not hasattr(kit, 'SUB'):\n    kit.SUB = torch._dynamo.substitute_in_graph(EXT, skip_signature_check=True)(lambda x, /: V)" + _GET + "EXT(0.5)", "globals()['V'] = 3.0"),
    "a script function": ("def one(x):\n    return x * 1.0\ndef two(x):\n    return x * 1.5\nS = torch.jit.script(two if CHANGED else one)" + _GET + "S(torch.full((4, 8), 2.0))", "pass"),
    "a traced module": ("class M1(nn.Module):\n    def forward(self, x):\n        return x * (1.5 if CHANGED else 1.0)\nS = torch.jit.trace(M1(), ramp(4, 8))" + _GET + "S(torch.full((4, 8), 2.0))", "pass"),
    "a GraphModule": ("class M1(nn.Module):\n    def forward(self, x):\n        return x * (1.5 if CHANGED else 1.0)\nS = torch.fx.symbolic_trace(M1())" + _GET + "S(torch.full((4, 8), 2.0))", "pass"),
    "a GraphModule's constant": ("class M1(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.w = torch.tensor(3.0 if CHANGED else 2.0)\n    def forward(self, x):\n        return x * self.w\nS = torch.fx.symbolic_trace(M1())" + _GET + "S(torch.full((4, 8), 1.0))", "pass"),
    "an exported module": ("class M1(nn.Module):\n    def forward(self, x):\n        return x * (1.5 if CHANGED else 1.0)\nS = torch.export.export(M1(), (ramp(4, 8),)).module()" + _GET + "S(torch.full((4, 8), 2.0))", "pass"),
}  # fmt: skip


def of_unseen(rng: random.Random) -> Iterator[Case]:
    """Yield a case for each place of a constant, and for each thing that is read."""
    for place, (before, read) in _PLACES.items():
        for pair, values in _PAIRS.items():
            if pair in _ALWAYS or rng.random() > 0.6:
                program = _SHOW.replace("{read}", read)
                if place in _CALLS:
                    program = program.replace("program(x)", "program(x, by)") + _one_of(_CALLS[place], values)
                yield Case("unseen", f"{pair} in {place}", _one_of(before, values) + program)
    for name, (before, change) in OTHERS.items():
        yield Case("unseen", name, f"{before}\n{READ.replace('{read}', 'read()')}{_changing(change)}")
    for name, (read, change) in TORCH.items():
        yield Case("unseen", name, READ.replace("{read}", read) + _changing(change))
    for name, source in PROGRAMS.items():
        yield Case("unseen", name, source)


def of_between(_: random.Random) -> Iterator[Case]:
    """Yield cases whose fact changes after the first call."""
    for name, (before, change) in HOLDERS.items():
        if "CHANGED" not in before + change:
            later = _changing(change).replace("change", "later", 1)
            program = "def program(x):\n    return x * read() + SALT\n"
            yield Case("between", name, f"{before}\n{program}{later}{_TWICE}")


_TWICE = """\
def run(call):
    first = call(ramp(4, 8)) * 1
    if CHANGED:
        later()
    return first, call(ramp(4, 8)) * 1
"""


def _changing(change: str) -> str:
    return "def change():\n" + textwrap.indent(change, "    ") + "\n"


def _one_of(text: str, values: tuple[str, str]) -> str:
    """Return a text with the second value where the fact is another one, and else with the first."""
    if not text:
        return ""
    one, other = (textwrap.indent(text.replace("{v}", value), "    ") for value in values)
    return f"if CHANGED:\n{other}\nelse:\n{one}\n"
