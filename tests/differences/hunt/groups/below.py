"""Cases of what code reads that no frame of Dynamo's has: AOTAutograd runs it, and its key has to tell. Each thing that
the other groups read in a frame is read there too, and what programs hold of loggers, locks, files and stacks."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator

from ..case import Case
from .outside import HOLD
from .reads import READS
from .unseen import OTHERS
from .unseen_torch import TORCH
from .untold import UNTOLD

FIRST = "a backward"
_TRAINED = "def run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    y.sum().backward()\n    return y, x.grad\n"
SITES = {
    "allow_in_graph in a checkpoint": "@torch._dynamo.allow_in_graph\ndef body(x):\n    return x.sin() * read()\ndef program(x):\n    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False) + SALT\n"
    + _TRAINED,
    FIRST: """
@torch.library.custom_op("hunt_ROW::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x * 1
@op.register_fake
def fake(x):
    return torch.empty_like(x)
op.register_autograd(lambda ctx, grad: grad * read())
def program(x):
    return op(x) + SALT
"""
    + _TRAINED,
    "a composite": """
LIBRARY = torch.library.Library("hunt_ROW", "DEF")
LIBRARY.define("op(Tensor x) -> Tensor")
LIBRARY.impl("op", lambda x: x * read(), "CompositeImplicitAutograd")
def program(x):
    return torch.ops.hunt_ROW.op(x) + SALT
""",
    "__torch_dispatch__": """
class Own(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
    def __init__(self, inner):
        self.inner = inner
    def __tensor_flatten__(self):
        return ["inner"], None
    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Own(inner["inner"])
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = torch.utils._pytree.tree_map(lambda a: a.inner if isinstance(a, Own) else a, args)
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return Own(out)
        return out * read()
def program(x):
    return x.sin() + SALT
def run(call):
    return call(Own(ramp(4, 8)))
""",
}
_GET = "\ndef read():\n    return "
_STACK = "'  File \"/a/b.py\", line 1, in f\\n    f()\\n'"
_LOG = "import logging\nLOG = logging.getLogger('hunt_ROW')"
HELD: dict[str, tuple[str, str]] = {
    # what decides nothing, unless code asks it
    "logger.isEnabledFor": (_LOG + _GET + "3.0 if LOG.isEnabledFor(10) else 2.0", "LOG.setLevel(10)"),
    "a parent logger's level": (_LOG + _GET + "3.0 if LOG.isEnabledFor(10) else 2.0", "logging.getLogger().setLevel(10)"),
    "logger.level": (_LOG + _GET + "2.0 if LOG.level == 0 else 3.0", "LOG.setLevel(10)"),
    "logger.disabled": (_LOG + _GET + "3.0 if LOG.disabled else 2.0", "LOG.disabled = True"),
    "logger's handlers": (_LOG + _GET + "len(LOG.handlers) + 2.0", "LOG.addHandler(logging.NullHandler())"),
    "logger's name": ("import logging\nLOG = logging.getLogger('abc' if CHANGED else 'ab')" + _GET + "len(LOG.name) * 1.0", "pass"),
    "Event.is_set": ("import threading\nE = threading.Event()" + _GET + "3.0 if E.is_set() else 2.0", "E.set()"),
    "lock.locked": ("import threading\nE = threading.Lock()" + _GET + "3.0 if E.locked() else 2.0", "E.acquire()"),
    "lock.acquire": ("import threading\nE = threading.Lock()\ndef read():\n    if E.acquire(blocking=False):\n        E.release()\n        return 2.0\n    return 3.0", "E.acquire()"),
    "a semaphore": ("import threading\nE = threading.Semaphore(2)" + _GET + "E._value * 1.0", "E.release()"),
    "a file's name": ("FILE = open('/dev/null' if CHANGED else '/dev/zero')" + _GET + "len(FILE.name) * 1.0", "pass"),
    "a file's text": ("open('hunt_ROW', 'w').write('3.0' if CHANGED else '2.0')\nFILE = open('hunt_ROW')\ndef read():\n    FILE.seek(0)\n    return float(FILE.read())", "pass"),
    "a closed file": ("FILE = open('/dev/null')" + _GET + "3.0 if FILE.closed else 2.0", "FILE.close()"),
    "a spec's origin": ("import importlib.machinery\nS = importlib.machinery.ModuleSpec('a', None, origin='abc' if CHANGED else 'ab')" + _GET + "len(S.origin) * 1.0", "pass"),
    "a type var's name": ("T = typing.TypeVar('Tcc' if CHANGED else 'Tb')" + _GET + "len(T.__name__) * 1.0", "pass"),
    "a forward reference": ("T = typing.ForwardRef('Tcc' if CHANGED else 'Tb')" + _GET + "len(T.__forward_arg__) * 1.0", "pass"),
    # texts that look like stacks
    "a list of a stack": (f"L = [{_STACK}] if CHANGED else []" + _GET + "3.0 if L else 2.0", "pass"),
    "a stack among texts": (f"L = ['a', {_STACK}] if CHANGED else ['a']" + _GET + "len(L) * 1.0 + 1", "pass"),
    "a tuple of stacks": (f"L = ({_STACK},) * (3 if CHANGED else 2)" + _GET + "len(L) * 1.0", "pass"),
    "a stack in a set of code": (f"def read():\n    return 3.0 if {_STACK} in L else 2.0\nL = {{{_STACK}}} if CHANGED else set()", "pass"),
    # names of the environment that code does not spell
    "a variable by a global name": ("NAME = 'HUNT'" + _GET + "float(os.environ.get(NAME, '2.0'))", "os.environ['HUNT'] = '3.0'"),
    "a variable by a part of its name": ("PART = 'NT'" + _GET + "float(os.getenv('HU' + PART, '2.0'))", "os.environ['HUNT'] = '3.0'"),
    "a variable by a default": ("def read(name='HUNT'):\n    return float(os.environ.get(name, '2.0'))", "os.environ['HUNT'] = '3.0'"),
    "a variable by a dict": ("D = {'a': 'HUNT'}" + _GET + "float(os.environ.get(D['a'], '2.0'))", "os.environ['HUNT'] = '3.0'"),
    "a variable by an attribute": ("class A:\n    name = 'HUNT'" + _GET + "float(os.environ.get(A.name, '2.0'))", "os.environ['HUNT'] = '3.0'"),
    "a variable by an enum": ("class E(enum.Enum):\n    A = 'HUNT'" + _GET + "float(os.environ.get(E.A.value, '2.0'))", "os.environ['HUNT'] = '3.0'"),
    "a variable by a closure": ("def outer(name):\n    return lambda: float(os.environ.get(name, '2.0'))\nread = outer('HUNT')", "os.environ['HUNT'] = '3.0'"),
    "a variable by a partial": ("read = functools.partial(lambda name: float(os.environ.get(name, '2.0')), 'HUNT')", "os.environ['HUNT'] = '3.0'"),
    "a variable by upper()": (_GET + "float(os.environ.get('hunt'.upper(), '2.0'))", "os.environ['HUNT'] = '3.0'"),
    "variables that begin so": (_GET + "2.0 + len([k for k in os.environ if k.startswith('HUNT')])", "os.environ['HUNT'] = '3.0'"),
    "environ by another name": ("from os import environ as E" + _GET + "float(E.get('HUNT', '2.0'))", "os.environ['HUNT'] = '3.0'"),
    "getenv by another name": ("from os import getenv as E" + _GET + "float(E('HUNT', '2.0'))", "os.environ['HUNT'] = '3.0'"),
    "expandvars": (_GET + "float(os.path.expandvars('$HUNT').replace('$HUNT', '2.0'))", "os.environ['HUNT'] = '3.0'"),
    "the home": (_GET + "len(os.path.expanduser('~')) * 1.0", "os.environ['HOME'] = '/a/folder/somewhere/else'"),
    "the temporary folder": ("import tempfile" + _GET + "len(tempfile.gettempdir()) * 1.0", "tempfile.tempdir = '/a/folder/somewhere'"),
    # settings of libraries
    "numpy's print options": ("import numpy as np" + _GET + "len(str(np.float64(1) / np.array([3.0]))) * 1.0", "np.set_printoptions(precision=3)"),
    "numpy's errors": ("import numpy as np\ndef read():\n    try:\n        return float(np.isinf(np.array([1.0]) / 0)[0]) + 1\n    except FloatingPointError:\n        return 3.0", "np.seterr(all='raise')"),
    "decimal's precision": ("import decimal" + _GET + "float(decimal.Decimal(2) / 3)", "decimal.getcontext().prec = 1"),
    "torch's print options": (_GET + "len(repr(torch.tensor(1 / 3))) * 1.0", "torch.set_printoptions(precision=8)"),
    "times of the locale": ("import time" + _GET + "float(len(time.strftime('%c', (2026, 1, 2, 3, 4, 5, 6, 7, 0))))", "time.strftime = lambda *a: 'x' * 77"),
    "a random state": ("import random\nR = random.Random(7 if CHANGED else 6)\nS = R.getstate()\ndef read():\n    R.setstate(S)\n    return R.random()", "pass"),
    "a generator's state": ("def g():\n    yield 2.0\n    yield 3.0\nG = g()\nif CHANGED:\n    next(G)" + _GET + "next(G, 7.0)", "pass"),
    # classes that say that they are others
    "a class named as a logger": ("class Logger:\n    v = 3.0 if CHANGED else 2.0\nLogger.__module__ = 'logging'\nONE = Logger()" + _GET + "ONE.v", "pass"),
    "a class named as a date": ("class date:\n    def __init__(self, v):\n        self.v = v\n    def __repr__(self):\n        return 'x'\ndate.__module__ = 'datetime'\nONE = date(3.0 if CHANGED else 2.0)" + _GET + "ONE.v", "pass"),
    "a class named as a kernel": ("class Kernel:\n    def __init__(self, v):\n        self.func, self.v = None, v\nKernel.__module__ = 'torch._library.utils'\nONE = Kernel(3.0 if CHANGED else 2.0)" + _GET + "ONE.v", "pass"),
    "a class of functools' that wraps": ("class W:\n    def __init__(self, v):\n        self.__wrapped__, self.v = len, v\nW.__module__ = 'functools'\nONE = W(3.0 if CHANGED else 2.0)" + _GET + "ONE.v", "pass"),
    "a dtype of a program": ("class dtype:\n    def __init__(self, v):\n        self.v = v\n    def __repr__(self):\n        return 'x'\ndtype.__module__ = 'torch'\nONE = dtype(3.0 if CHANGED else 2.0)" + _GET + "ONE.v", "pass"),
    # what is added to what a digest names
    "an attribute of a C function's class": ("import fractions\nfractions.Fraction.hunt = 3.0 if CHANGED else 2.0\nONE = fractions.Fraction(1)" + _GET + "ONE.hunt", "pass"),
    "an attribute of a module of the interpreter": ("import string\nstring.hunt = 3.0 if CHANGED else 2.0" + _GET + "string.hunt", "pass"),
    "a function of the interpreter": ("import string" + _GET + "float(len(string.capwords('ab')))", "string.capwords = lambda _: 'abc'"),
    "a class of the interpreter": ("import fractions" + _GET + "float(fractions.Fraction(2))", "fractions.Fraction = lambda _: 3"),
    "its method": ("import fractions" + _GET + "float(fractions.Fraction(2))", "fractions.Fraction.__float__ = lambda _: 3.0"),
    "a builtin": ("import builtins" + _GET + "abs(-2.0)", "builtins.abs = lambda _: 3.0"),
    "a module in sys.modules": ("import string" + _GET + "float(len(__import__('string').digits))", "string.digits = 'abc'"),
    "an attribute of a function": ("def read():\n    return read.v\nread.v = 2.0", "read.v = 3.0"),
    "an attribute of a method": ("class A:\n    def f(self):\n        return 1\nA.f.v = 2.0\nONE = A()" + _GET + "ONE.f.v", "A.f.v = 3.0"),
    "__wrapped__ that is no function": ("class W:\n    v = 2.0\ndef f():\n    pass\nf.__wrapped__ = W()" + _GET + "f.__wrapped__.v", "f.__wrapped__.v = 3.0"),
    "annotations": ("def f(a: 2.0):\n    pass" + _GET + "f.__annotations__['a']", "f.__annotations__['a'] = 3.0"),
    "annotations of a class": ("class A:\n    a: 2.0" + _GET + "A.__annotations__['a']", "A.__annotations__['a'] = 3.0"),
    "the doc of a function": ("def f():\n    'ab'" + _GET + "len(f.__doc__) * 1.0", "f.__doc__ = 'abc'"),
    "the name of a function": ("def f():\n    pass" + _GET + "len(f.__name__) * 1.0", "f.__name__ = 'abc'"),
    "slots of a class": ("class A:\n    __slots__ = ('a', 'b', 'c') if CHANGED else ('a', 'b')" + _GET + "len(A.__slots__) * 1.0", "pass"),
    "__match_args__": ("class A:\n    __match_args__ = ('b', 'a') if CHANGED else ('a', 'b')\n    def __init__(self):\n        self.a, self.b = 2.0, 3.0\nONE = A()\ndef read():\n    match ONE:\n        case A(v):\n            return v", "pass"),
    "the first line of code": ("def f(a):\n    pass\nf.__code__ = f.__code__.replace(co_firstlineno=3 if CHANGED else 2)" + _GET + "f.__code__.co_firstlineno * 1.0", "pass"),
    "the order of a dict by class": ("class A:\n    pass\nclass B:\n    pass\nD = {B: 3.0, A: 2.0} if CHANGED else {A: 2.0, B: 3.0}" + _GET + "[*D.values()][0]", "pass"),
    "same objects": ("L, M = [2.0], [2.0]" + _GET + "3.0 if L is M else 2.0", "globals()['M'] = L"),
    "same tensors": ("L, M = torch.ones(2), torch.ones(2)\ndef read():\n    return 3.0 if L.data_ptr() == M.data_ptr() else 2.0", "globals()['M'] = L"),
    "1 and True": ("V = True if CHANGED else 1" + _GET + "3.0 if V is True else 2.0", "pass"),
    "-0.0": ("import math\nV = -0.0 if CHANGED else 0.0" + _GET + "math.copysign(2.0, V)", "pass"),
    "a metaclass' __getattr__": ("class M(type):\n    def __getattr__(cls, name):\n        return V[0]\nclass A(metaclass=M):\n    pass\nV = [2.0]" + _GET + "A.v", "V[0] = 3.0"),
    "a module's __getattr__": ("M = types.ModuleType('hunt_m')\nM.__getattr__ = lambda name: V[0]\nV = [2.0]" + _GET + "M.v", "V[0] = 3.0"),
    "a module's __getattr__ and its module": ("M = types.ModuleType('hunt_m')\nM.V = [2.0]\nexec('def __getattr__(name):\\n    return V[0]', vars(M))" + _GET + "M.v", "M.V[0] = 3.0"),
    "a module's class": ("class M1(types.ModuleType):\n    v = property(lambda s: V[0])\nV = [2.0]\nM = M1('hunt_m')" + _GET + "M.v", "V[0] = 3.0"),
    "another module of the name": ("import string" + _GET + "string.hunt", "pass"),
    "a key's __hash__": ("class K:\n    def __hash__(self):\n        return 1\n    def __eq__(self, o):\n        return V[0]\nV = [False]\nA, B = K(), K()\nD = {A: 3.0}" + _GET + "D.get(B, 2.0)", "V[0] = True"),
    "a tensor's grad": ("T = torch.ones(1, requires_grad=True)" + _GET + "2.0 if T.grad is None else 3.0", "T.grad = torch.ones(1)"),
    "a tensor's attribute": ("T = torch.ones(1)\nT.by = 2.0" + _GET + "T.by", "T.by = 3.0"),
    "a parameter's attribute": ("T = nn.Parameter(torch.ones(1))\nT.by = 2.0" + _GET + "T.by", "T.by = 3.0"),
    "a tensor's version": ("T = torch.ones(1)" + _GET + "T._version + 2.0", "T.add_(0)"),
    "a tensor's storage": ("T = torch.ones(8)[:2]" + _GET + "T.untyped_storage().nbytes() / 32 + 1", "globals()['T'] = torch.ones(2)"),
    "a tensor's base": ("B = torch.ones(2)\nT = B.view(2)" + _GET + "2.0 if T._base is not None else 3.0", "globals()['T'] = torch.ones(2)"),
    "a module's hooks": ("M = nn.ReLU()" + _GET + "float(M(torch.ones(1) * 2))", "M.register_forward_hook(lambda m, a, o: o * 3)"),
    "a module's mode": ("M = nn.Dropout(1.0).eval()" + _GET + "float(M(torch.ones(1) * 2)) + 1", "M.train()"),
    "a module's child": ("M = nn.Sequential(nn.ReLU())" + _GET + "float(M(torch.ones(1) * 2))", "M[0] = nn.Tanh()"),
    "an array's flags": ("import numpy as np\nN = np.ones(2)" + _GET + "2.0 if N.flags.writeable else 3.0", "N.flags.writeable = False"),
    "an array's strides": ("import numpy as np\nN = np.ones((2, 2))" + _GET + "N.strides[0] / 8.0 + 1", "globals()['N'] = np.asfortranarray(N)"),
    "a record's fields": ("import numpy as np\nN = np.zeros(1, dtype=[('a' if CHANGED else 'ab', 'f4')])" + _GET + "len(N.dtype.names[0]) * 1.0", "pass"),
    "a dtype's fields": ("import numpy as np\nN = np.dtype([('a' if CHANGED else 'ab', 'f4')])" + _GET + "len(N.names[0]) * 1.0", "pass"),
    "a pattern's groups": ("import re\nP = re.compile('(?P<a>b)' if CHANGED else '(?P<ab>b)')" + _GET + "len([*P.groupindex][0]) * 1.0", "pass"),
    "a zone's rules": ("import datetime\nZ = datetime.timezone(datetime.timedelta(hours=3 if CHANGED else 2))" + _GET + "Z.utcoffset(None).seconds / 3600", "pass"),
}  # fmt: skip
HELD["another module of the name"] = (
    "import string\nstring.hunt = 2.0" + _GET + "__import__('sys').modules['string'].hunt",
    "sys.modules['string'] = types.SimpleNamespace(hunt=3.0)",
)


OPEN = frozenset(
    (
        "os.environ, computed name", "os.environb", "a variable by a part of its name", "sys.modules", "sys.modules.get",
        "sys.path", "importlib.import_module", "datetime's time zone", "warnings.filters", "threading.current_thread",
        "logging.getLogger().handlers", "a logger's level", "logger's handlers", "logger's name", "the caller's name",
        "file of code", "isinstance of collections.abc", "an ABC of numbers", "isinstance of a Protocol",
        "functools.lru_cache, filled before", "lru_cache", "torch.initial_seed", "random.initial_seed", "mha fastpath",
        "distributed.is_initialized", "is_multithreading_enabled", "get_worker_info", "length of the mode stack",
        "type of a field", "numpy's print options", "numpy's errors", "decimal's precision", "torch's print options",
        "an attribute of a C function's class", "__wrapped__ that is no function", "same tensors", "a module's class",
        "a tensor's grad", "a tensor's version", "a tensor's storage", "a tensor's base", "substitute_in_graph",
        "the temporary folder", "flush denormal",
    )
)  # fmt: skip
"""What no digest of code has, and no key: the decision on what is not restored names these as open."""


def of_below(rng: random.Random) -> Iterator[Case]:
    """Yield cases for what code below Dynamo reads: each thing at two places."""
    read = {
        **{name: (f"{before}{_GET}{text}", change) for name, (before, text, change) in READS.items()},
        **{name: (f"{_GET}{text}", change) for name, (text, change) in TORCH.items()},
        **{name: (before, "pass") for name, before in {**HOLD, **UNTOLD}.items()},
        **OTHERS,
        **HELD,
    }
    for name, (before, change) in ((name, one) for name, one in read.items() if name not in OPEN):
        for place in (FIRST, rng.choice(sorted(SITES.keys() - {FIRST}))):
            source = f"{before}\n{SITES[place]}def change():\n" + textwrap.indent(change, "    ") + "\n"
            yield Case("below", f"{name}, {place}", source)
