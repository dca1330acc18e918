"""Cases of what a trace takes of an object without a guard: members of containers that it goes through, attributes
of functions and classes that Dynamo trusts, and code that runs while Dynamo traces, and is not traced."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ..case import Case
from .unseen_torch import READ

_WHOLE = {
    "[*d]": "float([*D][0])", "extend": "(lambda one: one.extend(D) or one)([])[0] * 1.0", "(*d,)": "float((*D, 7)[0])",
    "f(*d)": "float((lambda a: a)(*D))", "{**d}": "float([*{**D}][0])", "dict(d)": "float([*dict(D)][0])",
    "d | d": "float([*(D | {})][0])", "sorted": "float(sorted(D)[0])", "max": "float(max(D))", "zip": "float([*zip(D, [1])][0][0])",
    "unpacking": "float((lambda: [a for (a,) in [D]])()[0])", "items": "float([*D.items()][0][0])", "set(d)": "float([*set(D)][0])",
    "sum": "float(sum(D))", "next(iter)": "float(next(iter(D)))", "copy": "float([*D.copy()][0])", "str": "float(len(str(D)))",
    "an f-string": "float(len(f'{D}'))", "reversed": "float([*reversed(D)][0])", "tuple(map)": "float(tuple(map(abs, D))[0])",
    "fromkeys": "float([*dict.fromkeys(D)][0])", "update": "(lambda one: one.update(D) or [*one][0])({}) * 1.0",
    "all": "3.0 if all(D) else 2.0", "slices of a list": "(lambda one: one.__setitem__(slice(0, 0), D) or one)([])[0] * 1.0",
    "list +=": "(lambda one: one.__iadd__(D))([])[0] * 1.0", "deque": "float(collections.deque(D)[0])",
    "Counter": "float([*collections.Counter(D)][0])", "min with a key": "float(min(D, key=abs))", "filter": "float([*filter(None, D)][0])",
    "set.update": "(lambda one: one.update(D) or [*one][0])(set()) * 1.0", "set.union": "float([*set().union(D)][0])",
}  # fmt: skip
_CONTAINERS = {
    "a dict": "D = {(30 if CHANGED else 2): 1}", "a list": "D = [30 if CHANGED else 2]", "a set": "D = {30 if CHANGED else 2}",
    "an OrderedDict": "D = collections.OrderedDict([(30 if CHANGED else 2, 1)])",
    "a dict of a program": "class Own(dict):\n    pass\nD = Own([(30 if CHANGED else 2, 1)])",
}  # fmt: skip
_TEXTS = "A = [t for t in map(str, range(10, 99)) if hash(t) % 8 == 0][:3]\nD = {kind}(A[::-1] if CHANGED else A)\n"
_ORDERS = {
    "a loop": "[t for t in D if t in D][0]", "join": "A[0] in D and ','.join(D)", "next": "A[0] in D and next(iter(D))",
    "a union": "A[0] in D and [*(D | {'z'})][0]", "an extend": "A[0] in D and [*D][0]", "enumerate": "'x' not in D and [*enumerate(D)][0][1]",
    "dict.fromkeys": "A[0] in D and [*dict.fromkeys(D)][0]",
}  # fmt: skip

_GET = "\ndef read():\n    return "
UNTOLD = {
    "annotations of a function": "def f(a: int):\n    pass\nf.__annotations__['a'] = 3.0 if CHANGED else 2.0" + _GET + "f.__annotations__['a']",
    "number of annotations": "def f(a: int):\n    pass\nif CHANGED:\n    f.__annotations__['b'] = int" + _GET + "len(f.__annotations__) + 1.0",
    "doc of a function": "def f(a):\n    pass\nf.__doc__ = 'abc' if CHANGED else 'ab'" + _GET + "len(f.__doc__) * 1.0",
    "module of a function": "def f(a):\n    pass\nf.__module__ = 'abc' if CHANGED else 'ab'" + _GET + "len(f.__module__) * 1.0",
    "qualname of a function": "def f(a):\n    pass\nf.__qualname__ = 'abc' if CHANGED else 'ab'" + _GET + "len(f.__qualname__) * 1.0",
    "name of a function": "def f(a):\n    pass\nf.__name__ = 'abc' if CHANGED else 'ab'" + _GET + "len(f.__name__) * 1.0",
    "an attribute of a function": "def f(a):\n    pass\nf.v = 3.0 if CHANGED else 2.0" + _GET + "f.v",
    "dict of a function": "def f(a):\n    pass\nf.v = 3.0 if CHANGED else 2.0" + _GET + "f.__dict__['v']",
    "first line": "def f(a):\n    pass\nf.__code__ = f.__code__.replace(co_firstlineno=3 if CHANGED else 2)" + _GET + "f.__code__.co_firstlineno * 1.0",
    "file of code": "def f(a):\n    pass\nf.__code__ = f.__code__.replace(co_filename='abc' if CHANGED else 'ab')" + _GET + "len(f.__code__.co_filename) * 1.0",
    "a signature": "import inspect\ndef f(a=2.0):\n    pass\nSIG = inspect.signature(f)\nif CHANGED:\n    SIG = SIG.replace(parameters=[inspect.Parameter('a', 1, default=3.0)])" + _GET + "SIG.parameters['a'].default",
    "a parameter": "import inspect\nP = inspect.Parameter('a', 1, default=3.0 if CHANGED else 2.0)" + _GET + "P.default",
    "annotation of a parameter": "import inspect\nP = inspect.Parameter('a', 1, annotation=3.0 if CHANGED else 2.0)" + _GET + "P.annotation",
    "a signature made there": "import inspect\ndef f(a: 1.0 = 1.0):\n    pass\nf.__annotations__['a'] = 3.0 if CHANGED else 2.0" + _GET + "inspect.signature(f).parameters['a'].annotation",
    "annotations of a class": "class A:\n    v: int = 1\nA.__annotations__['v'] = 3.0 if CHANGED else 2.0" + _GET + "A.__annotations__['v']",
    "doc of a class": "class A:\n    __doc__ = 'abc' if CHANGED else 'ab'" + _GET + "len(A.__doc__) * 1.0",
    "module of a class": "class A:\n    pass\nA.__module__ = 'abc' if CHANGED else 'ab'" + _GET + "len(A.__module__) * 1.0",
    "bases' order": "class A:\n    v = 2.0\nclass B:\n    v = 3.0\nclass C(*((B, A) if CHANGED else (A, B))):\n    pass" + _GET + "C.__mro__[1].v",
    "dict of a class": "class A:\n    pass\nA.v = 3.0 if CHANGED else 2.0" + _GET + "A.__dict__['v']",
    "vars of a class": "class A:\n    pass\nif CHANGED:\n    A.v = 1" + _GET + "3.0 if 'v' in vars(A) else 2.0",
    "type of a field": "@dataclasses.dataclass\nclass A:\n    v: int = 1\nA.__dataclass_fields__['v'].type = 3.0 if CHANGED else 2.0" + _GET + "dataclasses.fields(A)[0].type",
    "match args": "@dataclasses.dataclass\nclass A:\n    v: int = 1\nif CHANGED:\n    A.__match_args__ = ('v', 'w')" + _GET + "len(A.__match_args__) + 1.0",
    "a metaclass' len": "class M(type):\n    def __len__(cls):\n        return V[0]\nclass A(metaclass=M):\n    pass\nV = [3 if CHANGED else 2]" + _GET + "len(A) * 1.0",
    "a metaclass' bool": "class M(type):\n    def __bool__(cls):\n        return V[0]\nclass A(metaclass=M):\n    pass\nV = [CHANGED]" + _GET + "3.0 if A else 2.0",
    "a metaclass' eq": "class M(type):\n    def __eq__(cls, other):\n        return V[0]\n    __hash__ = type.__hash__\nclass A(metaclass=M):\n    pass\nV = [CHANGED]" + _GET + "3.0 if A == 1 else 2.0",
    "an enum's str": "class E(enum.Enum):\n    A = 1\n    def __str__(self):\n        return V[0]\nV = ['abc' if CHANGED else 'ab']" + _GET + "len(str(E.A)) * 1.0",
    "an enum's format": "class E(enum.Enum):\n    A = 1\n    def __format__(self, spec):\n        return V[0]\nV = ['abc' if CHANGED else 'ab']" + _GET + "len(f'{E.A}') * 1.0",
    "an enum's eq": "class E(enum.Enum):\n    A = 1\n    def __eq__(self, other):\n        return V[0]\n    __hash__ = enum.Enum.__hash__\nV = [CHANGED]" + _GET + "3.0 if E.A == 1 else 2.0",
    "an enum's property": "class E(enum.Enum):\n    A = 1\n    @property\n    def w(self):\n        return V[0]\nV = [3.0 if CHANGED else 2.0]" + _GET + "E.A.w",
    "an enum's getattr": "class E(enum.Enum):\n    A = 1\n    def __getattr__(self, name):\n        if name == 'w':\n            return V[0]\n        raise AttributeError(name)\nV = [3.0 if CHANGED else 2.0]" + _GET + "E.A.w",
    "an enum's len": "class E(enum.Enum):\n    A = 1\n    def __len__(self):\n        return V[0]\nV = [3 if CHANGED else 2]" + _GET + "len(E.A) * 1.0",
    "an int's bool": "class I(int):\n    def __bool__(self):\n        return V[0]\nV = [CHANGED]\nONE = I(1)" + _GET + "3.0 if ONE else 2.0",
    "an int's add": "class I(int):\n    def __add__(self, other):\n        return V[0]\nV = [3 if CHANGED else 2]\nONE = I(1)" + _GET + "(ONE + 1) * 1.0",
    "a text's len": "class S(str):\n    def __len__(self):\n        return V[0]\nV = [3 if CHANGED else 2]\nONE = S('a')" + _GET + "len(ONE) * 1.0",
    "a text's eq": "class S(str):\n    def __eq__(self, other):\n        return V[0]\n    __hash__ = str.__hash__\nV = [CHANGED]\nONE = S('a')" + _GET + "3.0 if ONE == 'b' else 2.0",
    "a tuple's len": "class T(tuple):\n    def __len__(self):\n        return V[0]\nV = [3 if CHANGED else 2]\nONE = T((1,))" + _GET + "len(ONE) * 1.0",
    "a named tuple's property": "class N(collections.namedtuple('N', 'a')):\n    @property\n    def w(self):\n        return V[0]\nV = [3.0 if CHANGED else 2.0]\nONE = N(1)" + _GET + "ONE.w",
    "an object's bool": "class A:\n    def __bool__(self):\n        return V[0]\nV = [CHANGED]\nONE = A()" + _GET + "3.0 if ONE else 2.0",
    "an object's hash": "class A:\n    def __hash__(self):\n        return 1\n    def __eq__(self, other):\n        return V[0]\nV = [CHANGED]\nONE, OTHER = A(), A()\nD = {ONE: 1}" + _GET + "3.0 if OTHER in D else 2.0",
    "a dataclass as a key": "@dataclasses.dataclass(frozen=True)\nclass A:\n    v: int\nD = {A(1): 2.0, A(2): 3.0}\nONE = A(2 if CHANGED else 1)" + _GET + "D[ONE]",
    "a subclass hook": "class M(type):\n    def __subclasscheck__(cls, other):\n        return V[0]\nclass A(metaclass=M):\n    pass\nV = [CHANGED]" + _GET + "3.0 if issubclass(int, A) else 2.0",
    "__class__": "class A:\n    pass\nclass B:\n    pass\nclass P:\n    @property\n    def __class__(self):\n        return V[0]\nV = [A if CHANGED else B]\nONE = P()" + _GET + "3.0 if isinstance(ONE, A) else 2.0",
    "an index": "class A:\n    def __index__(self):\n        return V[0]\nV = [1 if CHANGED else 0]\nONE = A()" + _GET + "[2.0, 3.0][ONE]",
    "a length hint": "class A:\n    def __len__(self):\n        return V[0]\nV = [1 if CHANGED else 0]\nONE = A()" + _GET + "3.0 if ONE else 2.0",
    "a descriptor": "class D:\n    def __get__(self, one, kind):\n        return V[0]\nclass A:\n    w = D()\nV = [3.0 if CHANGED else 2.0]\nONE = A()" + _GET + "ONE.w",
    "a class' descriptor": "class D:\n    def __get__(self, one, kind):\n        return V[0]\nclass A:\n    w = D()\nV = [3.0 if CHANGED else 2.0]" + _GET + "A.w",
    "a metaclass' property": "class M(type):\n    @property\n    def w(cls):\n        return V[0]\nclass A(metaclass=M):\n    pass\nV = [3.0 if CHANGED else 2.0]" + _GET + "A.w",
    "a metaclass' getattr": "class M(type):\n    def __getattr__(cls, name):\n        return V[0]\nclass A(metaclass=M):\n    pass\nV = [3.0 if CHANGED else 2.0]" + _GET + "A.w",
    "a class getitem": "class A:\n    def __class_getitem__(cls, key):\n        return V[0]\nV = [3.0 if CHANGED else 2.0]" + _GET + "A[1]",
    "a module's getattr": "M = types.ModuleType('M')\nV = [3.0 if CHANGED else 2.0]\nM.__getattr__ = lambda name: V[0]\nsys.modules['M'] = M" + _GET + "M.w",
    "subclasses": "class A:\n    pass\nif CHANGED:\n    class B(A):\n        pass" + _GET + "len(A.__subclasses__()) + 2.0",
    "a weak set": "class A:\n    pass\nK = [A(), A()]\nW = weakref.WeakSet(K[: 2 if CHANGED else 1])" + _GET + "len(W) * 1.0",
    "a weak dict": "class A:\n    pass\nK = [A(), A()]\nW = weakref.WeakKeyDictionary()\nW[K[0]] = 3.0 if CHANGED else 2.0" + _GET + "W[K[0]]",
    "a chain map": "C = collections.ChainMap({'v': 3.0} if CHANGED else {}, {'v': 2.0})" + _GET + "C['v']",
    "type hints": "class A:\n    v: int = 1\nif CHANGED:\n    A.__annotations__['w'] = int" + _GET + "len(typing.get_type_hints(A)) + 1.0",
    "get_origin": "T = typing.List[int] if CHANGED else typing.Optional[int]" + _GET + "3.0 if typing.get_origin(T) is list else 2.0",
    "get_args": "T = typing.Literal[3] if CHANGED else typing.Literal[2]" + _GET + "typing.get_args(T)[0] * 1.0",
    "a type var": "T = typing.TypeVar('Tcc' if CHANGED else 'Tb')" + _GET + "len(T.__name__) * 1.0",
    "single dispatch": "@functools.singledispatch\ndef f(a):\n    return 2.0\nif CHANGED:\n    f.register(int, lambda a: 3.0)" + _GET + "f(1)",
    "lru_cache": "@functools.lru_cache\ndef f():\n    return V[0]\nV = [3.0 if CHANGED else 2.0]\nf()\nV[0] = 7.0" + _GET + "f()",
    "cached_property": "class A:\n    @functools.cached_property\n    def v(self):\n        return 2.0\nONE = A()\nif CHANGED:\n    ONE.__dict__['v'] = 3.0\nelse:\n    ONE.v" + _GET + "ONE.v",
    "a generator's state": "def g():\n    yield 2.0\n    yield 3.0\nG = g()\nif CHANGED:\n    next(G)" + _GET + "next(G, 5.0)",
    "a closure's cell": "def outer(v):\n    def f():\n        return v\n    return f\nf = outer(2.0)\nif CHANGED:\n    f.__closure__[0].cell_contents = 3.0" + _GET + "f()",
    "a closure's function": "def outer(h):\n    def f():\n        return h()\n    return f\ndef one():\n    return 2.0\ndef two():\n    return 3.0\nf = outer(one)\nif CHANGED:\n    f.__closure__[0].cell_contents = two" + _GET + "f()",
    "struct": "import struct\nS = struct.Struct('d' if CHANGED else 'f')" + _GET + "S.size * 1.0",
    "a compiled pattern": "import re\nP = re.compile('ab' if CHANGED else 'a')" + _GET + "float(len(P.pattern))",
    "a match of a pattern": "import re\nP = re.compile('b' if CHANGED else 'a')" + _GET + "3.0 if P.match('b') else 2.0",
    "a Fraction": "import fractions\nV = fractions.Fraction(3 if CHANGED else 2)" + _GET + "float(V)",
    "a Decimal": "import decimal\nV = decimal.Decimal(3 if CHANGED else 2)" + _GET + "float(V)",
    "a date": "import datetime\nV = datetime.date(2000, 1, 3 if CHANGED else 2)" + _GET + "V.day * 1.0",
    "a path": "import pathlib\nV = pathlib.PurePosixPath('abc' if CHANGED else 'ab')" + _GET + "len(str(V)) * 1.0",
    "a uuid": "import uuid\nV = uuid.UUID(int=3 if CHANGED else 2)" + _GET + "V.int * 1.0",
    "a logger's level": "import logging\nlogging.getLogger('hunt').setLevel(30 if CHANGED else 20)" + _GET + "logging.getLogger('hunt').level / 10.0",
    "math's table": "import math\nif CHANGED:\n    math.tau = 3.0\nelse:\n    math.tau = 2.0" + _GET + "math.tau",
    "operator replaced": "import operator\nif CHANGED:\n    operator.add = lambda a, b: 3.0\nelse:\n    operator.add = lambda a, b: 2.0" + _GET + "operator.add(1, 1)",
    "itertools replaced": "import itertools\nif CHANGED:\n    itertools.chain = lambda *a: iter([3.0])\nelse:\n    itertools.chain = lambda *a: iter([2.0])" + _GET + "next(itertools.chain([1]))",
    "functools.reduce replaced": "if CHANGED:\n    functools.reduce = lambda *a: 3.0\nelse:\n    functools.reduce = lambda *a: 2.0" + _GET + "functools.reduce(1, 2)",
}  # fmt: skip
"""What differs -> a text that defines ``read``."""


def of_untold(rng: random.Random) -> Iterator[Case]:
    """Yield a case for each way to go through a container, for each order, and for each thing that is read."""
    for what, made in _CONTAINERS.items():
        for way, read in _WHOLE.items():
            if what == "a dict" or rng.random() > 0.7:
                yield Case("untold", f"{way} of {what}", f"{made}\n{READ.replace('{read}', read)}")
    for kind in ("frozenset", "set"):
        for way, read in _ORDERS.items():
            text = _TEXTS.replace("{kind}", kind) + READ.replace("{read}", f"float(str({read})[:2])")
            yield Case("untold", f"the order of a {kind} of texts, {way}", text)
    for name, before in UNTOLD.items():
        yield Case("untold", name, f"{before}\n{READ.replace('{read}', 'read()')}")
