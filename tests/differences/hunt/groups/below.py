"""Cases of what code reads that no frame of Dynamo's has: AOTAutograd runs it, and its key has to tell. Each thing that
the other groups read in a frame is read there too, and what programs hold of loggers, locks, files and stacks."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator

from ..case import Case
from .made_below import CASES as MADE
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


ASKED: dict[str, tuple[str, str, str]] = {
    "deterministic debug mode": ("", "torch.get_deterministic_debug_mode() + 2.0", "torch.set_deterministic_debug_mode(1)"),
    "sparse invariants": ("", "3.0 if torch.sparse.check_sparse_tensor_invariants.is_enabled() else 2.0", "torch.sparse.check_sparse_tensor_invariants.enable()"),
    "quantized engine": ("", "len(torch.backends.quantized.engine) * 1.0", "torch.backends.quantized.engine = next(e for e in torch.backends.quantized.supported_engines if len(e) != len(torch.backends.quantized.engine))"),
    "mkldnn.deterministic": ("", "3.0 if torch.backends.mkldnn.deterministic else 2.0", "torch.backends.mkldnn.deterministic = True"),
    "nnpack": ("", "2.0 if torch.backends.nnpack.is_available() and torch._C._get_nnpack_enabled() else 3.0", "torch._C._set_nnpack_enabled(False)"),
    "cublas tf32 of _C": ("", "3.0 if torch._C._get_cublas_allow_tf32() else 2.0", "torch._C._set_cublas_allow_tf32(True)"),
    "cudnn benchmark of _C": ("", "3.0 if torch._C._get_cudnn_benchmark() else 2.0", "torch._C._set_cudnn_benchmark(True)"),
    "fp16 reduced": ("", "2.0 if torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction else 3.0", "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False"),
    "cudnn.enabled from": ("from torch.backends import cudnn as C", "2.0 if C.enabled else 3.0", "torch.backends.cudnn.enabled = False"),
    "swap module params": ("", "3.0 if torch.__future__.get_swap_module_params_on_conversion() else 2.0", "torch.__future__.set_swap_module_params_on_conversion(True)"),
    "overwrite module params": ("", "3.0 if torch.__future__.get_overwrite_module_params_on_conversion() else 2.0", "torch.__future__.set_overwrite_module_params_on_conversion(True)"),
    "hub dir": ("", "len(torch.hub.get_dir()) * 1.0", "torch.hub.set_dir('/a/b')"),
    "sharing strategy": ("import torch.multiprocessing", "len(torch.multiprocessing.get_sharing_strategy()) * 1.0", "torch.multiprocessing.set_sharing_strategy('file_system')"),
    "safe globals": ("", "len(torch.serialization.get_safe_globals()) + 2.0", "torch.serialization.add_safe_globals([collections.Counter])"),
    "mmap options": ("", "torch.serialization.get_default_mmap_options() * 1.0", "import mmap; torch.serialization.set_default_mmap_options(mmap.MAP_SHARED)"),
    "crc32 options": ("", "2.0 if torch.serialization.get_crc32_options() else 3.0", "torch.serialization.set_crc32_options(False)"),
    "parametrize cache": ("from torch.nn.utils import parametrize as P", "P._cache_enabled + 2.0", "P._cache_enabled = 1"),
    "profiler on": ("", "3.0 if torch.autograd._profiler_enabled() else 2.0", "kit.MODE = torch.autograd.profiler.profile(use_kineto=False); kit.MODE.__enter__()"),
    "default generator's seed": ("", "torch.default_generator.initial_seed() % 7 + 1.0", "torch.manual_seed(5)"),
    "rng state": ("", "float(torch.get_rng_state().float().sum() % 7) + 1", "torch.manual_seed(5)"),
    "privateuse1 name": ("", "len(torch._C._get_privateuse1_backend_name()) * 1.0", "torch.utils.rename_privateuse1_backend('hunt')"),
    "has kernel": ("", "3.0 if torch._C._dispatch_has_kernel_for_dispatch_key('hunt_ROW::other', 'CPU') else 2.0", "kit.L = torch.library.Library('hunt_ROW', 'FRAGMENT'); kit.L.define('other(Tensor x) -> Tensor'); kit.L.impl('other', lambda x: x, 'CPU')"),
    "an operator is there": ("", "3.0 if hasattr(torch.ops.hunt_x, 'other') else 2.0", "kit.L = torch.library.Library('hunt_x', 'FRAGMENT'); kit.L.define('other(Tensor x) -> Tensor')"),
    "saved tensors hooks": ("", "2.0 if torch._C._autograd._saved_tensors_hooks_is_enabled() else 3.0", "torch._C._autograd._saved_tensors_hooks_disable('no')"),
    "view replay": ("", "3.0 if torch._C._is_view_replay_enabled() else 2.0", "torch._C._set_view_replay_enabled(True)"),
    "flash impl": ("", "2.0 if torch.nn.attention.current_flash_attention_impl() is None else 3.0", "import torch.nn.attention._registry as r; [setattr(r, n, 'FA3') for n in vars(r) if n.upper() == n and 'ACTIVE' in n]"),
    "allow_unspec_int of dynamo": ("import torch._dynamo.config as C", "C.recompile_limit * 1.0", "C.recompile_limit = 9"),
    "a config by getattr": ("C = torch._inductor.config", "3.0 if getattr(C, 'max_' + 'autotune') else 2.0", "C.max_autotune = True"),
    "a config's copy": ("import torch._dynamo.config as C", "C.get_config_copy()['recompile_limit'] * 1.0", "C.recompile_limit = 9"),
    "list_backends": ("", "len(torch._dynamo.list_backends(None)) * 1.0", "torch._dynamo.register_backend(lambda g, i: g, name='hunt')"),
    "cuda.is_available": ("", "3.0 if torch.cuda.is_available() else 2.0", "torch.cuda._device_count_nvml = lambda: 1; torch._C._cuda_getDeviceCount = lambda: 1"),
    "tensor type id": ("", "len(torch.storage._LegacyStorage.__subclasses__()) * 1.0", "torch.storage._LegacyStorage.__subclasses__; kit.S = type('S', (torch.storage._LegacyStorage,), {})"),
    # the interpreter
    "sys.gettrace": ("", "2.0 if sys.getprofile() is None else 3.0", "sys.setprofile(lambda *a: None)"),
    "sys.argv": ("", "len(sys.argv) * 1.0", "sys.argv.append('x')"),
    "sys.dont_write_bytecode": ("", "3.0 if sys.dont_write_bytecode else 2.0", "sys.dont_write_bytecode = not sys.dont_write_bytecode"),
    "gc thresholds": ("import gc", "gc.get_threshold()[0] * 1e-4", "gc.set_threshold(777)"),
    "gc debug": ("import gc", "gc.get_debug() + 2.0", "gc.set_debug(gc.DEBUG_UNCOLLECTABLE)"),
    "a seeded numpy": ("import numpy as np\nnp.random.seed(3)", "float(np.random.rand()) + 1", "np.random.seed(5)"),
    "a numpy generator": ("import numpy as np\nG = np.random.default_rng(5 if CHANGED else 3)", "float(G.random()) + 1", "pass"),
    "a contextvar": ("import contextvars\nV = contextvars.ContextVar('V', default=2.0)", "V.get()", "V.set(3.0)"),
    "a thread local": ("import threading\nL = threading.local()\nL.v = 2.0", "L.v", "L.v = 3.0"),
    "active threads": ("import threading", "threading.active_count() * 1.0", "threading.Thread(target=threading.Event().wait, daemon=True).start()"),
    "cpu_count": ("", "len(os.sched_getaffinity(0)) * 1.0", "os.sched_setaffinity(0, {0})"),
    "niceness": ("", "os.nice(0) + 2.0", "os.nice(1)"),
    "umask": ("", "os.umask(0o22) + 2.0", "os.umask(0o77)"),
    "resource limits": ("import resource", "resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 1e-3", "resource.setrlimit(resource.RLIMIT_NOFILE, (999, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))"),
    "a signal's handler": ("import signal", "2.0 if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL else 3.0", "signal.signal(signal.SIGUSR1, lambda *a: None)"),
    "the time zone": ("import time", "time.timezone / 3600 + 2.0", "os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()"),
    "a local time": ("import time", "time.localtime(0).tm_hour + 2.0", "os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()"),
    "locale conventions": ("import locale", "len(locale.localeconv()['decimal_point']) + len(locale.setlocale(locale.LC_TIME)) * 1.0", "locale.setlocale(locale.LC_TIME, 'C.UTF-8')"),
    "a path's text": ("import pathlib\nP = pathlib.Path('hunt_ROW')\nP.write_text('3.0' if CHANGED else '2.0')", "float(P.read_text())", "pass"),
    "a path exists": ("import pathlib\nP = pathlib.Path('hunt_ROW_there')\nif CHANGED:\n    P.touch()", "3.0 if P.exists() else 2.0", "pass"),
    "a path of code": ("import pathlib\npathlib.Path('hunt_ROW').write_text('3.0' if CHANGED else '2.0')", "float(pathlib.Path('hunt_ROW').read_text())", "pass"),
    "glob": ("import glob\nif CHANGED:\n    open('hunt_ROW.g', 'w')", "len(glob.glob('hunt_ROW.g')) + 2.0", "pass"),
    "np.load": ("import numpy as np\nnp.save('hunt_ROW', np.array([3.0 if CHANGED else 2.0]))", "float(np.load('hunt_ROW.npy')[0])", "pass"),
    "np.fromfile": ("import numpy as np\nnp.array([3.0 if CHANGED else 2.0]).tofile('hunt_ROW')", "float(np.fromfile('hunt_ROW')[0])", "pass"),
    "io.open": ("import io\nopen('hunt_ROW', 'w').write('3.0' if CHANGED else '2.0')", "float(io.open('hunt_ROW').read())", "pass"),
    "os.open": ("open('hunt_ROW', 'w').write('3.0' if CHANGED else '2.0')", "float(os.read(os.open('hunt_ROW', 0), 9))", "pass"),
    "torch.load": ("torch.save(3.0 if CHANGED else 2.0, 'hunt_ROW.pt')", "torch.load('hunt_ROW.pt')", "pass"),
    "torch.from_file": ("torch.full((1,), 3.0 if CHANGED else 2.0).numpy().tofile('hunt_ROW')", "float(torch.from_file('hunt_ROW', size=1))", "pass"),
    "linecache": ("import linecache\nopen('hunt_ROW', 'w').write('3.0' if CHANGED else '2.0')", "float(linecache.getline('hunt_ROW', 1))", "pass"),
    "configparser": ("import configparser\nopen('hunt_ROW', 'w').write('[a]\\nb = 3.0' if CHANGED else '[a]\\nb = 2.0')\ndef load():\n    c = configparser.ConfigParser()\n    c.read('hunt_ROW')\n    return c", "float(load()['a']['b'])", "pass"),
    "a read config": ("import configparser\nC = configparser.ConfigParser()\nC.read_string('[a]\\nb = 3.0' if CHANGED else '[a]\\nb = 2.0')", "float(C['a']['b'])", "pass"),
    "a subprocess": ("import subprocess\nopen('hunt_ROW', 'w').write('3.0' if CHANGED else '2.0')", "float(subprocess.check_output(['cat', 'hunt_ROW']))", "pass"),
    "os.popen": ("open('hunt_ROW', 'w').write('3.0' if CHANGED else '2.0')", "float(os.popen('cat hunt_ROW').read())", "pass"),
    "shutil.which": ("import shutil", "2.0 if shutil.which('cat') else 3.0", "os.environ['PATH'] = '/nothing'"),
    "entry points": ("import importlib.metadata\nos.makedirs('hunt_ROW_d/one-1.0.dist-info', exist_ok=True)\nopen('hunt_ROW_d/one-1.0.dist-info/METADATA', 'w').write('Name: hunt-one\\nVersion: 1.0\\n')\nopen('hunt_ROW_d/one-1.0.dist-info/entry_points.txt', 'w').write('[hunt_ROW]\\na = b:c\\n')", "len(importlib.metadata.entry_points(group='hunt_ROW')) + 2.0", "sys.path.insert(0, 'hunt_ROW_d')"),
    "a version": ("import importlib.metadata\nos.makedirs('hunt_ROW_d/one_ROW-1.0.dist-info', exist_ok=True)\nopen('hunt_ROW_d/one_ROW-1.0.dist-info/METADATA', 'w').write('Name: one_ROW\\nVersion: ' + ('3' if CHANGED else '2') + '\\n')\nsys.path.insert(0, 'hunt_ROW_d')", "float(importlib.metadata.version('one_ROW'))", "pass"),
    "inspect.getsource": ("import inspect\nclass A:\n    pass\nf = eval('lambda: 2.0')\nimport linecache\nopen('hunt_ROW_s.py', 'w').write('def f():\\n    return ' + ('30' if CHANGED else '2') + '\\n')\nimport importlib.util\n_s = importlib.util.spec_from_file_location('hunt_ROW_s', 'hunt_ROW_s.py')\nm = importlib.util.module_from_spec(_s)\n_s.loader.exec_module(m)\nf = m.f\nf.__code__ = (lambda: 2).__code__.replace(co_filename='hunt_ROW_s.py', co_firstlineno=1)", "len(inspect.getsource(f)) * 1.0", "pass"),
    "pkgutil": ("import pkgutil\nos.makedirs('hunt_ROW_p', exist_ok=True)\nif CHANGED:\n    open('hunt_ROW_p/a.py', 'w')", "len([*pkgutil.iter_modules(['hunt_ROW_p'])]) + 2.0", "pass"),
    "the host's name": ("import socket", "len(socket.gethostname()) * 1.0", "socket.gethostname = lambda: 'a' * 77"),
    "the default socket timeout": ("import socket", "socket.getdefaulttimeout() or 2.0", "socket.setdefaulttimeout(3.0)"),
    "mimetypes": ("import mimetypes", "2.0 if mimetypes.guess_type('a.huntx')[0] is None else 3.0", "mimetypes.add_type('a/b', '.huntx')"),
    "codecs registry": ("import codecs\ndef has():\n    try:\n        codecs.lookup('hunt_ROW')\n        return 3.0\n    except LookupError:\n        return 2.0", "has()", "codecs.register(lambda n: codecs.lookup('utf-8') if n.startswith('hunt') else None)"),
    "an error handler of codecs": ("import codecs\ncodecs.register_error('hunt_ROW', lambda e: ('3' if CHANGED else '2', e.end))", "float('é'.encode('ascii', 'hunt_ROW'))", "pass"),
    "faulthandler": ("import faulthandler", "3.0 if faulthandler.is_enabled() else 2.0", "faulthandler.disable() if faulthandler.is_enabled() else faulthandler.enable()"),
    "tracemalloc": ("import tracemalloc", "3.0 if tracemalloc.is_tracing() else 2.0", "tracemalloc.start()"),
    "numpy's handler": ("import numpy as np", "2.0 if np.geterrcall() is None else 3.0", "np.seterrcall(lambda *a: None)"),
    "numpy's buffer": ("import numpy as np", "np.getbufsize() * 1e-3", "np.setbufsize(4096 * 4)"),
    "numpy's errstate": ("import numpy as np", "2.0 if np.geterr()['over'] == 'warn' else 3.0", "np.seterr(over='ignore')"),
    "numpy's format": ("import numpy as np", "len(np.array2string(np.array([1 / 3]))) * 1.0", "np.set_printoptions(precision=3)"),
    "csv field size": ("import csv", "csv.field_size_limit() * 1e-5", "csv.field_size_limit(7)"),
    "csv dialects": ("import csv", "len(csv.list_dialects()) * 1.0", "csv.register_dialect('hunt')"),
    "warnings' registry": ("", "len(warnings.filters) * 1.0", "warnings.simplefilter('error', append=True)"),
    "atexit": ("import atexit", "atexit._ncallbacks() * 1.0", "atexit.register(print, end='')"),
    "the logger's class": ("import logging", "len(logging.getLoggerClass().__name__) * 1.0", "logging.setLoggerClass(type('Longer_name', (logging.Logger,), {}))"),
    "a level's name": ("import logging", "len(str(logging.getLevelName(10))) * 1.0", "logging.addLevelName(10, 'x' * 33)"),
    "a cached function": ("@functools.lru_cache\ndef f():\n    return V[0]\nV = [2.0]\nif CHANGED:\n    V[0] = 3.0\n    f()\n    V[0] = 2.0", "f()", "pass"),
    "an hmac's state": ("import hashlib\nH = hashlib.sha256(b'b' if CHANGED else b'a')", "H.digest()[0] * 1.0", "pass"),
    "a queue": ("import queue\nQ = queue.Queue()\nQ.put(3.0 if CHANGED else 2.0)", "Q.queue[0]", "pass"),
    "a shelf in memory": ("import io\nB = io.BytesIO(b'3' if CHANGED else b'2')", "float(B.getvalue())", "pass"),
    "a mmap": ("import mmap\nopen('hunt_ROW', 'w').write('3' if CHANGED else '2')\nF1 = open('hunt_ROW')\nM = mmap.mmap(F1.fileno(), 0, access=mmap.ACCESS_READ)", "float(M[:1])", "pass"),
    "a cffi-like function": ("import ctypes\nC = ctypes.CDLL(None)\nC.abs.restype = ctypes.c_double if CHANGED else ctypes.c_int", "2.0 if isinstance(C.abs(-2), int) else 3.0", "pass"),
    "os.environ by ctypes": ("import ctypes\nC = ctypes.CDLL(None)\nC.getenv.restype = ctypes.c_char_p", "float(C.getenv(b'HUNTC') or 2.0)", "os.environ['HUNTC'] = '3.0'"),
    "singledispatch register": ("@functools.singledispatch\ndef f(x):\n    return 2.0\nif CHANGED:\n    f.register(int, lambda x: 3.0)", "f(1)", "pass"),
    "subclass registry": ("class P:\n    ALL = []\n    def __init_subclass__(cls):\n        P.ALL.append(cls)\nclass A(P):\n    v = 2.0\nif CHANGED:\n    class B(P):\n        v = 3.0", "P.ALL[-1].v", "pass"),
    "an array shared with a tensor": ("import numpy as np\nN = np.full(1, 2.0)\nT = torch.from_numpy(N)", "float(T)", "N[0] = 3.0"),
}  # fmt: skip

"""What code asks of torch, of the interpreter and of the machine: before, what is read, change."""


OPEN = frozenset(("substitute_in_graph", "isinstance of a Protocol"))
"""What no digest of code has, and no key: the decision on what is not restored names these as open."""


def of_below(rng: random.Random) -> Iterator[Case]:
    """Yield cases for what code below Dynamo reads: each thing at two places."""
    read = {
        **{name: (f"{before}{_GET}{text}", change) for name, (before, text, change) in READS.items()},
        **{name: (f"{_GET}{text}", change) for name, (text, change) in TORCH.items()},
        **{name: (f"{before}{_GET}{text}", change) for name, (before, text, change) in ASKED.items()},
        **{name: (f"{before}{_GET}{text}", change) for name, (before, text, change) in MADE.items()},
        **{name: (before, "pass") for name, before in {**HOLD, **UNTOLD}.items()},
        **OTHERS,
        **HELD,
    }
    for name, (before, change) in ((name, one) for name, one in read.items() if name not in OPEN):
        for place in (FIRST, rng.choice(sorted(SITES.keys() - {FIRST}))):
            source = f"{before}\n{SITES[place]}def change():\n" + textwrap.indent(change, "    ") + "\n"
            yield Case("below", f"{name}, {place}", source)
