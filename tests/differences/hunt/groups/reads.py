"""Cases in which traced code reads something of the process."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator

from ..case import Case

SITES = {
    "in the function": "def program(x):\n    return x * ({read}) + SALT\n",
    "in a helper": "def helper():\n    return {read}\ndef program(x):\n    return x * helper() + SALT\n",
    "in a method": "class Reader:\n    def get(self):\n        return {read}\nREADER = Reader()\ndef program(x):\n    return x * READER.get() + SALT\n",
    "in a module": "class Model(nn.Module):\n    def forward(self, x):\n        return x * ({read}) + SALT\ndef make():\n    return Model()\n",
    "in a branch": "def program(x):\n    if ({read}) > 1.5:\n        return x * 3 + SALT\n    return x + SALT\n",
    "in a default": "def program(x):\n    def inner(y, by=None):\n        return y * (({read}) if by is None else by)\n    return inner(x) + SALT\n",
}  # fmt: skip
FIRST = "in the function"
_ENV = "os.environ['HUNT'] = '3.0'"
READS: dict[str, tuple[str, str, str]] = {
    # name: (text before, what is read as a number, what makes it another one)
    "os.environ.get, absent": ("", "float(os.environ.get('HUNT', '2.0'))", _ENV),
    "os.environ.get, another": ("os.environ['HUNT'] = '2.0'", "float(os.environ.get('HUNT'))", _ENV),
    "os.environ[]": ("os.environ['HUNT'] = '2.0'", "float(os.environ['HUNT'])", _ENV),
    "os.getenv, absent": ("", "float(os.getenv('HUNT', '2.0'))", _ENV),
    "os.getenv is None": ("", "2.0 if os.getenv('HUNT') is None else 3.0", _ENV),
    "in os.environ": ("", "3.0 if 'HUNT' in os.environ else 2.0", _ENV),
    "not in os.environ.keys()": ("", "2.0 if 'HUNT' not in os.environ.keys() else 3.0", _ENV),
    "os.environ, computed name": ("PART = 'NT'", "float(os.environ.get('HU' + PART, '2.0'))", _ENV),
    "os.environ.setdefault": ("", "float(os.environ.setdefault('HUNT', '2.0'))", _ENV),
    "os.environ under another name": ("from os import environ as E", "float(E.get('HUNT', '2.0'))", _ENV),
    "os.environ.copy": ("", "float(os.environ.copy().get('HUNT', '2.0'))", _ENV),
    "os.environb": ("", "float(os.environb.get(b'HUNT', b'2.0'))", _ENV),
    "try os.environ[]": ("def get():\n    try:\n        return float(os.environ['HUNT'])\n    except KeyError:\n        return 2.0", "get()", _ENV),
    "len(os.environ)": ("", "float(len(os.environ))", _ENV),
    "os.getcwd": ("", "float(len(os.getcwd()))", "os.chdir('/')"),
    "os.path.exists": ("", "2.0 if os.path.exists('hunt.txt') else 3.0", "open('hunt.txt', 'w').close(); CLEAN = os.chdir('/tmp') if False else None"),
    "a file": ("def get():\n    try:\n        with open('hunt_number') as file:\n            return float(file.read())\n    except OSError:\n        return 2.0", "get()", "open('hunt_number', 'w').write('3.0')"),
    "os.listdir": ("", "float(len(os.listdir('.')))", "open('hunt_one_more', 'w').close()"),
    "id(object)": ("ONE = object()", "float(id(ONE) % 1009 + 1)", "kit.HOLD = [object() for _ in range(50)]; globals()['ONE'] = object()"),
    "id(object) differs": ("ONE, OTHER = [1], [2]", "2.0 if id(ONE) < id(OTHER) else 3.0", "globals().update(ONE=OTHER, OTHER=ONE) if ONE is not None and id(ONE) < id(OTHER) else globals().update(ONE=OTHER, OTHER=ONE)"),
    "sys.getrecursionlimit": ("", "sys.getrecursionlimit() / 1000", "sys.setrecursionlimit(5000)"),
    "sys.getswitchinterval": ("", "sys.getswitchinterval() * 500", "sys.setswitchinterval(0.01)"),
    "sys.argv": ("", "float(len(sys.argv))", "sys.argv.append('one')"),
    "sys.modules": ("", "3.0 if 'hunt_absent' in sys.modules else 2.0", "sys.modules['hunt_absent'] = types.ModuleType('hunt_absent')"),
    "sys.modules.get": ("", "2.0 if sys.modules.get('hunt_absent') is None else 3.0", "sys.modules['hunt_absent'] = types.ModuleType('hunt_absent')"),
    "sys.path": ("", "float(len(sys.path))", "sys.path.append('/nowhere')"),
    "sys.version_info": ("", "float(sys.version_info[1])", "sys.version_info = (3, 20, 0)"),
    "sys.platform": ("", "2.0 if sys.platform == 'linux' else 3.0", "sys.platform = 'win32'"),
    "sys.maxsize": ("", "2.0 if sys.maxsize > 2**32 else 3.0", "sys.maxsize = 7"),
    "sys.flags": ("", "2.0 if not sys.flags.optimize else 3.0", "sys.flags = types.SimpleNamespace(optimize=1)"),
    "sys.getrefcount": ("ONE = object()", "float(sys.getrefcount(ONE))", "kit.HOLD = [ONE] * 3"),
    "sys.byteorder": ("", "2.0 if sys.byteorder == 'little' else 3.0", "sys.byteorder = 'big'"),
    "platform.system": ("import platform", "2.0 if platform.system() == 'Linux' else 3.0", "platform.system = lambda: 'Darwin'"),
    "platform.node": ("import platform", "float(len(platform.node()))", "platform.node = lambda: 'x' * 77"),
    "os.cpu_count": ("", "float(os.cpu_count())", "os.cpu_count = lambda: 77"),
    "os.name": ("", "2.0 if os.name == 'posix' else 3.0", "os.name = 'nt'"),
    "time.timezone": ("import time", "time.timezone / 3600 + 2.0", "os.environ['TZ'] = 'America/New_York'; time.tzset()"),
    "time.tzname": ("import time", "float(len(time.tzname[0]))", "os.environ['TZ'] = 'ABCDEFG5'; time.tzset()"),
    "datetime's time zone": ("import datetime", "datetime.datetime(2026, 1, 2).timestamp() % 86400 / 3600 + 1", "import time; os.environ['TZ'] = 'America/New_York'; time.tzset()"),
    "locale.getlocale": ("import locale", "2.0 if locale.setlocale(locale.LC_CTYPE) == 'C' else 3.0", "locale.setlocale(locale.LC_CTYPE, 'C.UTF-8') if locale.setlocale(locale.LC_CTYPE) == 'C' else locale.setlocale(locale.LC_CTYPE, 'C')"),
    "warnings.filters": ("", "float(len(warnings.filters))", "warnings.filterwarnings('ignore', 'one')"),
    "logger's level": ("import logging\nLOG = logging.getLogger('hunt')", "2.0 if LOG.level == 0 else 3.0", "LOG.setLevel(10)"),
    "logger.isEnabledFor": ("import logging\nLOG = logging.getLogger('hunt')", "3.0 if LOG.isEnabledFor(10) else 2.0", "LOG.setLevel(10)"),
    "logging.getLogger().handlers": ("import logging", "float(len(logging.getLogger().handlers) + 1)", "logging.getLogger().addHandler(logging.NullHandler())"),
    "isinstance of an ABC": ("class Abc(abc.ABC):\n    pass\nclass One:\n    pass\nONE = One()", "3.0 if isinstance(ONE, Abc) else 2.0", "Abc.register(One)"),
    "issubclass of an ABC": ("class Abc(abc.ABC):\n    pass\nclass One:\n    pass", "3.0 if issubclass(One, Abc) else 2.0", "Abc.register(One)"),
    "isinstance of collections.abc": ("import collections.abc\nclass One:\n    pass\nONE = One()", "3.0 if isinstance(ONE, collections.abc.Sequence) else 2.0", "collections.abc.Sequence.register(One)"),
    "isinstance of a Protocol": ("@typing.runtime_checkable\nclass Named(typing.Protocol):\n    name: str\nclass One:\n    pass\nONE = One()", "3.0 if isinstance(ONE, Named) else 2.0", "ONE.name = 'x'"),
    "__instancecheck__": ("FLAG = [False]\nclass Meta(type):\n    def __instancecheck__(cls, one):\n        return FLAG[0]\nclass One(metaclass=Meta):\n    pass", "3.0 if isinstance(5, One) else 2.0", "FLAG[0] = True"),
    "functools.lru_cache": ("STATE = {'v': 2.0}\n@functools.lru_cache\ndef get():\n    return STATE['v']", "get()", "STATE['v'] = 3.0"),
    "functools.cache of the environment": ("@functools.cache\ndef get():\n    return float(os.environ.get('HUNT', '2.0'))", "get()", _ENV),
    "functools.lru_cache, filled before": ("STATE = {'v': 2.0}\n@functools.lru_cache\ndef get():\n    return STATE['v']", "get()", "STATE['v'] = 3.0; get(); STATE['v'] = 2.0"),
    "functools.cached_property": ("class One:\n    @functools.cached_property\n    def v(self):\n        return float(os.environ.get('HUNT', '2.0'))\nONE = One()", "ONE.v", _ENV),
    "a global counter": ("COUNT = [0]\ndef get():\n    return 2.0 + COUNT[0]", "get()", "COUNT[0] += 1"),
    "itertools.count": ("import itertools\nCOUNT = itertools.count(2)", "float(next(COUNT))", "next(COUNT)"),
    "an iterator": ("NUMBERS = iter([2.0, 3.0, 4.0] * 9)", "next(NUMBERS)", "next(NUMBERS)"),
    "a generator": ("def numbers():\n    yield from [2.0, 3.0, 4.0] * 9\nNUMBERS = numbers()", "next(NUMBERS)", "next(NUMBERS)"),
    "contextvars": ("import contextvars\nVAR = contextvars.ContextVar('VAR', default=2.0)", "VAR.get()", "VAR.set(3.0)"),
    "contextvars, another default": ("import contextvars\nVAR = contextvars.ContextVar('VAR', default=3.0 if CHANGED else 2.0)", "VAR.get()", "pass"),
    "threading.local": ("import threading\nLOCAL = threading.local()\nLOCAL.v = 2.0", "LOCAL.v", "LOCAL.v = 3.0"),
    "threading.local, getattr": ("import threading\nLOCAL = threading.local()", "getattr(LOCAL, 'v', 2.0)", "LOCAL.v = 3.0"),
    "threading.current_thread": ("import threading", "float(len(threading.current_thread().name))", "threading.current_thread().name = 'x' * 30"),
    "random.getstate": ("import random", "2.0 if random.getstate()[1][0] % 2 else 3.0", "random.seed(random.getrandbits(9)); random.seed(4)"),
    "getattr of a module, absent": ("import types\nLIB = types.ModuleType('hunt_lib')\nsys.modules['hunt_lib'] = LIB", "getattr(LIB, 'v', 2.0)", "LIB.v = 3.0"),
    "hasattr of a module, absent": ("import types\nLIB = types.ModuleType('hunt_lib')\nsys.modules['hunt_lib'] = LIB", "3.0 if hasattr(LIB, 'v') else 2.0", "LIB.v = 3.0"),
    "globals().get, absent": ("", "globals().get('ABSENT', 2.0)", "globals()['ABSENT'] = 3.0"),
    "'name' in globals()": ("", "3.0 if 'ABSENT' in globals() else 2.0", "globals()['ABSENT'] = 3.0"),
    "builtins, absent": ("import builtins", "getattr(builtins, 'hunt_value', 2.0)", "builtins.hunt_value = 3.0"),
    "builtins replaced": ("import builtins", "float(len([1, 2]))", "builtins.len = lambda _: 3"),
    "math.pi replaced": ("import math", "math.pi", "math.pi = 3.5"),
    "math.sqrt replaced": ("import math", "math.sqrt(4.0)", "math.sqrt = lambda _: 3.0"),
    "numpy's seterr": ("import numpy as np", "2.0 if np.geterr()['over'] == 'warn' else 3.0", "np.seterr(over='ignore')"),
    "importlib.util.find_spec": ("import importlib.util", "2.0 if importlib.util.find_spec('hunt_absent') is None else 3.0", "open('hunt_absent.py', 'w').close(); sys.path.insert(0, os.getcwd())"),
    "import, absent": ("def get():\n    try:\n        import hunt_absent\n        return 3.0\n    except ImportError:\n        return 2.0", "get()", "sys.modules['hunt_absent'] = types.ModuleType('hunt_absent')"),
    "importlib.metadata.version": ("import importlib.metadata", "float(len(importlib.metadata.version('torch')))", "importlib.metadata.version = lambda _: 'x' * 40"),
    "torch.__version__": ("", "2.0 if torch.__version__ >= '2' else 3.0", "torch.__version__ = '1.0'"),
    "torch.get_num_threads": ("", "float(torch.get_num_threads())", "torch.set_num_threads(3)"),
    "torch.cuda.is_available": ("", "3.0 if torch.cuda.is_available() else 2.0", "torch.cuda.is_available = lambda: True"),
    "torch.is_grad_enabled": ("", "2.0 if torch.is_grad_enabled() else 3.0", "torch.set_grad_enabled(False)"),
    "torch.backends flag": ("", "2.0 if torch.backends.mkldnn.is_available() else 3.0", "torch.backends.mkldnn.is_available = lambda: False"),
    "torch.get_default_dtype": ("", "2.0 if torch.get_default_dtype() is torch.float32 else 3.0", "torch.set_default_dtype(torch.float64)"),
    "torch.initial_seed": ("", "float(torch.initial_seed() % 7 + 1)", "torch.manual_seed(5)"),
    "torch.compiler.is_compiling replaced": ("", "2.0 if torch.overrides.is_tensor_method_or_property(torch.add) else 3.0", "torch.overrides.is_tensor_method_or_property = lambda _: True"),
    "inspect.signature": ("import inspect\ndef f(a):\n    pass", "float(len(inspect.signature(f).parameters) + 1)", "f.__signature__ = inspect.signature(lambda a, b: 0)"),
    "__annotations__": ("class One:\n    a: int", "float(len(One.__annotations__) + 1)", "One.__annotations__['b'] = int"),
    "__doc__": ("def f():\n    'one'", "float(len(f.__doc__))", "f.__doc__ = 'another'"),
    "__name__ of a function": ("def f():\n    pass", "float(len(f.__name__))", "f.__name__ = 'another'"),
    "__defaults__": ("def f(a=2.0):\n    return a", "f()", "f.__defaults__ = (3.0,)"),
    "__kwdefaults__": ("def f(*, a=2.0):\n    return a", "f()", "f.__kwdefaults__ = {'a': 3.0}"),
    "__code__": ("def f():\n    return 2.0\ndef g():\n    return 3.0", "f()", "f.__code__ = g.__code__"),
    "__closure__": ("def outer(a):\n    def f():\n        return a\n    return f\nf = outer(2.0)", "f()", "f.__closure__[0].cell_contents = 3.0"),
    "__class__": ("class One:\n    v = 2.0\nclass Other:\n    v = 3.0\nONE = One()", "ONE.v", "ONE.__class__ = Other"),
    "__bases__": ("class A:\n    v = 2.0\nclass B:\n    v = 3.0\nclass C(A):\n    pass\nONE = C()", "ONE.v", "C.__bases__ = (B,)"),
    "__subclasses__": ("class A:\n    pass\nclass B(A):\n    pass", "float(len(A.__subclasses__()) + 1)", "kit.HOLD = type('D', (A,), {})"),
    "__dict__ of a class": ("class A:\n    pass", "float(len(vars(A)))", "A.one = 1"),
    "dir()": ("class A:\n    pass\nONE = A()", "float(len(dir(ONE)))", "A.one = 1"),
    "repr": ("class A:\n    def __repr__(self):\n        return 'ab'\nONE = A()", "float(len(repr(ONE)))", "A.__repr__ = lambda self: 'abc'"),
    "gc.isenabled": ("import gc", "2.0 if gc.isenabled() else 3.0", "gc.disable()"),
    "sys.getsizeof": ("ONE = [1]", "float(sys.getsizeof(ONE))", "ONE.extend(range(99))"),
    "decimal's context": ("import decimal", "float(decimal.getcontext().prec)", "decimal.getcontext().prec = 9"),
    "torch._dynamo.config": ("import torch._dynamo", "float(torch._dynamo.config.cache_size_limit if hasattr(torch._dynamo.config, 'cache_size_limit') else 8)", "torch._dynamo.config.recompile_limit = 9"),
    "builtin of a name that the module defines": ("", "abs(-2.0)", "globals()['abs'] = lambda v: 3.0"),
    "builtin class of such a name": ("", "float('2')", "globals()['float'] = lambda v: 3.0"),
    "torch.finfo": ("", "torch.finfo(torch.float32).max / 1e38", "torch.finfo = lambda _: types.SimpleNamespace(max=3e38 * 0.1)"),
}  # fmt: skip


def of_reads(rng: random.Random) -> Iterator[Case]:
    """Yield a case for each thing that is read, at two places each."""
    for name, (before, read, change) in READS.items():
        places = [FIRST, *rng.sample(sorted(SITES.keys() - {FIRST}), 2)]
        for place in dict.fromkeys(places):
            program = SITES[place].replace("{read}", read)
            source = f"{before}\n{program}def change():\n" + textwrap.indent(change, "    ") + "\n"
            yield Case("reads", f"{name}, {place}", source)
    pid = "def program(x):\n    return x * float(os.getpid() % 1000 + 1) + SALT\n"
    yield Case("reads", "os.getpid", pid, same_process=True)


# What an interpreter starts with ------------------------------------------------------------------

_PROCESSES: dict[str, tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]] = {
    "PYTHONHASHSEED": ({"PYTHONHASHSEED": "7"}, (), (
        "hash('one') % 97", "hash(('a', 1)) % 97", "list({'a', 'b', 'c', 'd'}).index('a') + 1",
        "hash(b'xyz') % 89", "ord(next(iter({'a', 'b', 'c', 'd', 'e'})))", "hash(frozenset(['q'])) % 83")),
    "TZ": ({"TZ": "America/New_York"}, (), ("__import__('time').timezone / 3600 + 2",)),
    "LC_ALL": ({"LC_ALL": "C.UTF-8", "LANG": "C.UTF-8"}, (), (
        "len(__import__('locale').setlocale(__import__('locale').LC_ALL))", "len(os.environ.get('LC_ALL', ''))+1")),
    "HUNT": ({"HUNT": "3.0"}, (), ("float(os.environ.get('HUNT', '2.0'))", "2.0 if os.getenv('HUNT') is None else 3.0")),
    "-O": ({}, ("-O",), ("2.0 if __debug__ else 3.0", "sys.flags.optimize + 2", "asserted()")),
    "-W error": ({}, ("-W", "error::ResourceWarning"), ("len(warnings.filters)", "len(sys.warnoptions) + 1")),
    "-X utf8": ({}, ("-X", "utf8"), ("sys.flags.utf8_mode + 2", "len(sys._xoptions) + 2")),
    "-X dev": ({}, ("-X", "faulthandler"), ("len(sys._xoptions) + 2",)),
    "-B": ({"PYTHONDONTWRITEBYTECODE": "1"}, (), ("3.0 if sys.dont_write_bytecode else 2.0",)),
    "OMP_NUM_THREADS": ({"OMP_NUM_THREADS": "2"}, (), ("len(os.environ['OMP_NUM_THREADS']) + float(os.environ['OMP_NUM_THREADS'])",)),
    "PYTHONUNBUFFERED": ({"PYTHONUNBUFFERED": "1"}, (), ("len(os.environ.get('PYTHONUNBUFFERED', '')) + 2",)),
}  # fmt: skip


def of_processes(rng: random.Random) -> Iterator[Case]:
    """Yield cases that need a process with other variables or arguments."""
    before = "def asserted():\n    try:\n        assert False\n    except AssertionError:\n        return 2.0\n    return 3.0\n"
    for what, (variables, flags, reads) in _PROCESSES.items():
        for read in reads:
            for place in (FIRST, rng.choice(sorted(SITES.keys() - {FIRST}))):
                source = before + SITES[place].replace("{read}", f"float({read})")
                yield Case("process", f"{what}: {read}, {place}", source, variables, flags)
