"""Cases of data that torch keeps beside its functions, of what an instance of a module overrides, and of objects in C
that hold a value."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Iterator

from ..case import Case

_P = "def program(x):\n    return {call} + SALT\n"
_TRAINED = "def run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    y.sum().backward()\n    return y, x.grad\n"
# what a program calls, and the data of torch that a program changes
DATA: dict[str, tuple[str, str]] = {
    "the module that nn calls": ("nn.ReLU()(x)", "import torch.nn.modules.activation as a; a.F = types.SimpleNamespace(relu=lambda x, inplace=False: x * 3)"),
    "a module that nn calls": ("nn.ReLU()(x)", "import torch.nn.modules.activation as a; a.F = types.ModuleType('torch.nn.functional'); a.F.relu = lambda x, inplace=False: x * 3"),
    "torch in F": ("F.layer_norm(x, (8,))", "F.torch = types.ModuleType('torch'); F.torch.layer_norm = lambda x, *a: x * 3"),
    "the reductions of F": ("F.l1_loss(x, x * 3)", "F._Reduction = types.ModuleType('torch.nn._reduction'); F._Reduction.get_enum = lambda r: 2"),
    "a class attribute of nn": ("nn.LayerNorm.hunt * x if hasattr(nn.LayerNorm, 'hunt') else x * 2", "nn.LayerNorm.hunt = 3.0"),
    "a class attribute in a forward": ("nn.GLU()(x)", "nn.GLU.__init__ = lambda s, dim=0: nn.Module.__init__(s) or setattr(s, 'dim', dim)"),
    "a number of a class of torch": ("float(torch.distributions.Normal.has_rsample + 1) * x", "torch.distributions.Normal.has_rsample = False"),
    "validation of distributions": ("torch.distributions.Bernoulli(probs=x + 2).mean", "torch.distributions.Distribution._validate_args = False"),
    "__constants__ of nn": ("float(len(nn.Linear.__constants__)) * x", "nn.Linear.__constants__ = ['a', 'b', 'c', 'd']"),
    "a list of a class": ("float(len(nn.Linear.__constants__)) * x", "nn.Linear.__constants__.append('one_more')"),
    "a module in sys.modules": ("nn.functional.relu(x)", "m = types.ModuleType('torch.nn.functional'); m.__dict__.update(vars(F)); m.relu = lambda x: x * 3; nn.functional = sys.modules['torch.nn.functional'] = m"),
    "pi of torch": ("x * torch.pi", "torch.pi = 3.5"),
    "inf of torch": ("torch.where(x > torch.inf, x, x * 2)", "torch.inf = -1.0"),
    "newaxis of torch": ("x[torch.newaxis].sum(0)", "torch.newaxis = 0"),
    "get_enum's table": ("F.kl_div(x, x.softmax(-1), reduction='mean')", "F._Reduction.get_enum = lambda r: 2"),
    "legacy of reductions": ("F.mse_loss(x, x * 3, size_average=False)", "F._Reduction.legacy_get_string = lambda *a, **k: 'mean'"),
    "calculate_gain": ("x * nn.init.calculate_gain('leaky_relu', 0.3)", "nn.init.calculate_gain = lambda *a: 3.0"),
    "DTYPE of overrides": ("torch.overrides.is_tensor_like(x) * 2.0 * x", "torch.overrides.is_tensor_like = lambda x: 1.5"),
    "a class of the name": ("nn.ReLU()(x)", "nn.ReLU = type('ReLU', (nn.Module,), {'__module__': 'torch.nn.modules.activation', 'forward': lambda s, x: x * 3})"),
    "a builtin of the name": ("torch.sum(x, 1).sum()", "import builtins; torch.sum = builtins.sum"),
    "typed storage": ("float(torch.Tensor.ndim.__get__(x)) * x", "torch.Tensor.ndim = property(lambda s: 7)"),
}  # fmt: skip
LOWERED: dict[str, tuple[str, str]] = {
    "C++ types of Inductor": ("x.double() / 3", "from torch._inductor.codegen import cpp_utils as c; c.DTYPE_TO_CPP[torch.float64] = 'float'"),
    "the type of an index": ("x.cumsum(0).flip(0)", "from torch._inductor.codegen import cpp_utils as c; c.INDEX_TYPE = 'int8_t'"),
    "a limit of Inductor's": ("x.sin().cos().tan()", "from torch._inductor.codegen.cpp import CppScheduling as c; c.MAX_FUSED_KERNEL_ARGS_NUM = 1"),
    "types of computations of Inductor": ("(x.bfloat16() * 3.3 + 0.1).float()", "from torch._inductor.codegen import common as c; c.DTYPE_TO_COMPUTATION_DTYPE[torch.bfloat16] = torch.bfloat16"),
    "reductions of Inductor": ("x.amax(0)", "from torch._inductor.codegen import cpp as c; c.reduction_init = lambda *a: '100.0f'"),
    "VECTORIZABLE_DTYPES": ("x.sin()", "from torch._inductor.codegen import cpp as c; c.VECTORIZABLE_DTYPES.clear()"),
}  # fmt: skip
"""Data of Inductor's: a compile without a cache judges."""
BELOW: dict[str, tuple[str, str]] = {
    "an enumeration of the decompositions": ("F.mse_loss(x, x * 3)", "import torch._decomp.decompositions as d; d.Reduction = types.SimpleNamespace(NONE=types.SimpleNamespace(value=0), MEAN=types.SimpleNamespace(value=2), SUM=types.SimpleNamespace(value=1))"),
    "implementations of fake tensors": ("x.sin() * torch.ones(x.sin().shape[0]).sum()", "from torch._subclasses import fake_impls as f; f.op_implementations_dict[torch.ops.aten.sin.default] = lambda m, fn, x: x.new_empty((7, 8))"),
    "checks of fake tensors": ("x.sin() * torch.ones(x.sin().shape[0]).sum()", "from torch._subclasses import fake_impls as f; f.op_implementations_checks.insert(0, (lambda fn: fn is torch.ops.aten.sin.default, lambda m, fn, x: x.new_empty((7, 8))))"),
}  # fmt: skip
"""What AOTAutograd reads and eager does not: a compile without a cache judges."""
MODULES: dict[str, str] = {
    "_call_impl": "M._call_impl = lambda x: x * 3",
    "_compiled_call_impl": "M._compiled_call_impl = lambda x: x * 3",
    "forward of another module": "M.forward = nn.Tanh().forward",
    "forward that is a partial": "M.forward = functools.partial(lambda m, x: x * 3, M)",
    "accelerate's hook": "old = M.forward\n    M._hf_hook = types.SimpleNamespace(by=3.0)\n    def forward(m, x):\n        return old(x) * m._hf_hook.by\n    M.forward = functools.update_wrapper(functools.partial(forward, M), old)",
    "__class__": "class Own(nn.Linear):\n        def forward(self, x):\n            return x * 3\n    M.__class__ = Own",
    "__class__ of the same name": "M.__class__ = type('Linear', (nn.Linear,), {'forward': lambda s, x: x * 3, '__module__': 'torch.nn.modules.linear'})",
    "hooks' dict": "M._forward_hooks[77] = lambda m, a, o: o * 3",
    "hooks' dict, replaced": "M._forward_hooks = {77: lambda m, a, o: o * 3}",
    "pre-hooks' dict": "M._forward_pre_hooks[77] = lambda m, a: (a[0] * 3,)",
    "parameters' dict": "M._parameters['weight'] = nn.Parameter(M.weight.detach().t().contiguous() * 2, requires_grad=False)",
    "a parameter that is a property": "class Own(nn.Linear):\n        weight = property(lambda s: s._parameters['weight'] * 3)\n    M.__class__ = Own",
    "a parameter that is an attribute": "w = M.weight\n    del M.weight\n    M.__dict__['weight'] = w.detach() * 3",
    "a parameter in half a size": "M.weight = nn.Parameter(M.weight.detach()[:4].clone(), requires_grad=False); M.bias = None",
    "a parameter that overlaps itself": "M.weight = nn.Parameter(torch.ones(1).expand(8, 8), requires_grad=False)",
    "weight and bias in one memory": "w = torch.cat([M.weight.detach().reshape(-1), M.bias.detach()])\n    M.weight.data, M.bias.data = w[:64].view(8, 8), w[56:64]",
    "a module's __getattr__": "class Own(nn.Linear):\n        def __getattr__(self, name):\n            return 3.0 if name == 'by' else super().__getattr__(name)\n    M.__class__ = Own",
    "extra state": "M.by = torch.tensor(3.0)",
    "training of a child by dict": "M.__dict__['training'] = False; M.by = 2.5",
    "a registered buffer": "M.register_buffer('by', torch.tensor(3.0))",
    "a registered buffer, not persistent": "M.register_buffer('by', torch.tensor(3.0), persistent=False)",
    "a global hook on parameters": "nn.modules.module.register_module_parameter_registration_hook(lambda m, n, p: nn.Parameter(p.detach() * 3)); M.weight = nn.Parameter(M.weight.detach() * 1)",
    "swapped tensors": "torch.utils.swap_tensors(M.weight, nn.Parameter(M.weight.detach() * 3))",
    "lazy": "kit.LAZY = nn.LazyLinear(8); kit.LAZY(ramp(4, 8)); M.weight, M.bias = kit.LAZY.weight, kit.LAZY.bias; nn.init.constant_(M.weight, 3.0)",
    "spectral norm": "nn.utils.parametrizations.spectral_norm(M)",
    "orthogonal": "nn.utils.parametrizations.orthogonal(M)",
    "quantized dynamically": "M.weight.data = torch.quantize_per_tensor(M.weight.detach(), 0.25, 0, torch.qint8).dequantize()",
    "nn.Module's __getattr__": "nn.Module.__getattr__ = (lambda old: lambda s, n: 3.0 if n == 'by' else old(s, n))(nn.Module.__getattr__)",
}  # fmt: skip
_MODEL = "M = nn.Linear(8, 8)\nwith torch.no_grad():\n    M.weight.copy_(ramp(8, 8)); M.bias.fill_(0.25)\ndef program(x):\n    return M(x) * getattr(M, 'by', 2.0) + SALT\n"
_GET = "\ndef read():\n    return "
HOLD: dict[str, str] = {
    "itemgetter": "import operator\nG = operator.itemgetter(1 if CHANGED else 0)" + _GET + "G([2.0, 3.0])",
    "attrgetter": "import operator\nG = operator.attrgetter('b' if CHANGED else 'a')\nONE = types.SimpleNamespace(a=2.0, b=3.0)" + _GET + "G(ONE)",
    "methodcaller": "import operator\nG = operator.methodcaller('get', 'v', 3.0 if CHANGED else 2.0)\nD = {}" + _GET + "G(D)",
    "a dict's bound get": "GET = {'v': 3.0 if CHANGED else 2.0}.get" + _GET + "GET('v')",
    "a list's bound getitem": "GET = [3.0 if CHANGED else 2.0].__getitem__" + _GET + "GET(0)",
    "a text's bound join": "J = ('abc' if CHANGED else 'ab').join" + _GET + "len(J(['x', 'y'])) * 1.0",
    "a tuple's bound index": "J = (7, 8, 9)[1 if CHANGED else 0:].index" + _GET + "J(9) + 1.0",
    "a number's bound add": "J = (3.0 if CHANGED else 2.0).__add__" + _GET + "J(1.0)",
    "cmp_to_key": "K = functools.cmp_to_key((lambda a, b: b - a) if CHANGED else (lambda a, b: a - b))" + _GET + "sorted([2.0, 3.0], key=K)[0]",
    "total_ordering": "@functools.total_ordering\nclass A:\n    def __init__(self, v):\n        self.v = v\n    def __eq__(self, o):\n        return self.v == o.v\n    def __lt__(self, o):\n        return (self.v > o.v) if CHANGED else (self.v < o.v)\nONE, TWO = A(1), A(2)" + _GET + "2.0 if ONE >= TWO else 3.0",
    "an exhausted zip": "Z = zip([2.0, 3.0], [1, 1])\nif CHANGED:\n    next(Z)" + _GET + "next(Z)[0]",
    "an enumerate": "Z = enumerate([7, 7, 7], 3 if CHANGED else 2)" + _GET + "next(Z)[0] * 1.0",
    "a map": "Z = map((lambda v: v * 3.0) if CHANGED else (lambda v: v * 2.0), [1, 1])" + _GET + "next(Z)",
    "a reversed": "Z = reversed([2.0, 3.0] if CHANGED else [3.0, 2.0])" + _GET + "next(Z)",
    "a cycle": "import itertools\nZ = itertools.cycle([2.0, 3.0])\nif CHANGED:\n    next(Z)" + _GET + "next(Z)",
    "iter of a callable": "V = [3.0 if CHANGED else 2.0]\nZ = iter(lambda: V[0], None)" + _GET + "next(Z)",
    "a view of a dict": "D = {'v': 3.0 if CHANGED else 2.0}\nV = D.values()" + _GET + "[*V][0]",
    "a view of items": "D = {'v': 3.0 if CHANGED else 2.0}\nV = D.items()" + _GET + "[*V][0][1]",
    "a match of classes": "class A:\n    __match_args__ = ('b', 'a') if CHANGED else ('a', 'b')\n    a, b = 2.0, 3.0\nONE = A()\ndef read():\n    match ONE:\n        case A(v):\n            return v",
    "a match of a mapping": "D = {'v': 3.0 if CHANGED else 2.0}\ndef read():\n    match D:\n        case {'v': v}:\n            return v",
    "a match of a sequence": "D = [3.0, 2.0] if CHANGED else [2.0, 3.0]\ndef read():\n    match D:\n        case [v, *_]:\n            return v",
    "format_map": "D = {'v': '3.0' if CHANGED else '2.0'}" + _GET + "float('{v}'.format_map(D))",
    "a text by %": "D = {'v': '3.0' if CHANGED else '2.0'}" + _GET + "float('%(v)s' % D)",
    "a table of letters": "T = str.maketrans({'a': '3' if CHANGED else '2'})" + _GET + "float('a'.translate(T))",
    "a function's names": "def f(a, b=1):\n    c = 1\n    return c\ndef g(a, b=1):\n    c = d = e = 1\n    return c\nH = g if CHANGED else f" + _GET + "H.__code__.co_nlocals * 1.0",
    "a function's constants": "def f():\n    return 2.0\ndef g():\n    return 3.0\nH = g if CHANGED else f" + _GET + "H.__code__.co_consts[-1]",
    "inspect.getmembers": "import inspect\nclass A:\n    a = 1\nif CHANGED:\n    A.b = 1" + _GET + "len(inspect.getmembers(A)) * 1.0",
    "the caller's name": "def where():\n    return len(sys._getframe(1).f_code.co_name) * 1.0\ndef ab():\n    return where()\ndef abcd():\n    return where()\nH = abcd if CHANGED else ab" + _GET + "H()",
    "__name__ of the module": "if CHANGED:\n    __name__ = 'abc'" + _GET + "len(__name__) * 1.0",
    "__file__": "if CHANGED:\n    __file__ = 'abc'" + _GET + "len(__file__) * 1.0",
    "a global's deletion": "V = 2.0\nif CHANGED:\n    del V\ndef read():\n    try:\n        return V\n    except NameError:\n        return 3.0",
    "int_max_str_digits": "if CHANGED:\n    sys.set_int_max_str_digits(640)\ndef read():\n    try:\n        return len(str(10 ** 700)) * 0 + 2.0\n    except ValueError:\n        return 3.0",
    "ACT2FN": "class C(collections.OrderedDict):\n    def __getitem__(self, key):\n        content = super().__getitem__(key)\n        cls, kwargs = content if isinstance(content, tuple) else (content, {})\n        return cls(**kwargs)\nA = C(act=(nn.LeakyReLU, {'negative_slope': 0.5 if CHANGED else 0.1}))" + _GET + "A['act'](torch.full((4, 8), -2.0))",
    "attention's interface": "from collections.abc import MutableMapping\nclass I(MutableMapping):\n    _global = {'a': lambda: 2.0}\n    def __init__(self):\n        self._local = {}\n    def __getitem__(self, k):\n        return self._local[k] if k in self._local else self._global[k]\n    def __setitem__(self, k, v):\n        self._local[k] = v\n    def __delitem__(self, k):\n        del self._local[k]\n    def __iter__(self):\n        return iter({**self._global, **self._local})\n    def __len__(self):\n        return 1\n    @classmethod\n    def register(cls, k, v):\n        cls._global[k] = v\nALL = I()\nif CHANGED:\n    I.register('a', lambda: 3.0)" + _GET + "ALL['a']()",
    "attention's interface, get": "from collections.abc import MutableMapping\nclass I(MutableMapping):\n    _global = {}\n    def __getitem__(self, k):\n        return self._global[k]\n    def __setitem__(self, k, v):\n        self._global[k] = v\n    def __delitem__(self, k):\n        pass\n    def __iter__(self):\n        return iter(self._global)\n    def __len__(self):\n        return 1\nALL = I()\nif CHANGED:\n    I._global['a'] = lambda: 3.0" + _GET + "ALL.get('a', lambda: 2.0)()",
    "attribute_map": "class C:\n    attribute_map = {'size': 'b' if CHANGED else 'a'}\n    def __init__(self):\n        self.a, self.b = 2.0, 3.0\n    def __getattribute__(self, key):\n        if key != 'attribute_map' and key in super().__getattribute__('attribute_map'):\n            key = super().__getattribute__('attribute_map')[key]\n        return super().__getattribute__(key)\nONE = C()" + _GET + "ONE.size",
    "a scaling by adapter": "class L(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.scaling = {'a': 2.0, 'b': 3.0}\n        self._active = ['b'] if CHANGED else ['a']\n    @property\n    def active_adapters(self):\n        return self._active\n    def forward(self, x):\n        for one in self.active_adapters:\n            x = x * self.scaling[one]\n        return x\nM = L()" + _GET + "M(torch.ones(4, 8))",
    "an ABC of numbers": "import numbers\nclass A:\n    pass\nif CHANGED:\n    numbers.Number.register(A)\nONE = A()" + _GET + "3.0 if isinstance(ONE, numbers.Number) else 2.0",
    "np.float32 replaced": "import numpy as np\nif CHANGED:\n    np.float32 = np.float64" + _GET + "float(np.ones(2, dtype=np.float32).nbytes)",
    "numpy's structure": "import numpy as np\nT = np.dtype([('a', 'f8'), ('b', 'f4')] if CHANGED else [('a', 'f4'), ('b', 'f4')])" + _GET + "float(T.itemsize)",
    "a WeakMethod": "class A:\n    v = 3.0 if CHANGED else 2.0\n    def f(self):\n        return self.v\nONE = A()\nR = weakref.WeakMethod(ONE.f)" + _GET + "R()()",
    "a chain of partials in a dict": "D = {'a': functools.partial(functools.partial(max, 2.0), 3.0 if CHANGED else 1.0)}" + _GET + "D['a'](0.0)",
    "a static method of a subclass": "class A:\n    @staticmethod\n    def f():\n        return 2.0\nclass B(A):\n    pass\nif CHANGED:\n    B.f = staticmethod(lambda: 3.0)\nK = B" + _GET + "K.f()",
    "a property's deleter and class": "class P(property):\n    def __get__(self, one, kind=None):\n        return V[0]\nclass A:\n    w = P()\nV = [3.0 if CHANGED else 2.0]\nONE = A()" + _GET + "ONE.w",
    "super() with another class": "class A:\n    def f(self):\n        return 2.0\nclass B:\n    def f(self):\n        return 3.0\nclass C(A, B):\n    def f(self):\n        return super(K, self).f()\nK = A if CHANGED else C\nONE = C()" + _GET + "ONE.f()",
    "__missing__ of a default": "class D(dict):\n    def __missing__(self, k):\n        return V[0]\nV = [3.0 if CHANGED else 2.0]\nONE = D()" + _GET + "ONE['a']",
    "a bool's class": "V = 3.0 if CHANGED else 2.0\nclass N:\n    def __mul__(self, o):\n        return V\n    __rmul__ = __mul__\nONE = N()" + _GET + "ONE * 1",
    "an exception's class": "class E1(Exception):\n    v = 2.0\nclass E2(E1):\n    v = 3.0\nK = E2 if CHANGED else E1\ndef read():\n    try:\n        raise K()\n    except E1 as e:\n        return e.v",
    "an exception's argument": "V = [3.0 if CHANGED else 2.0]\ndef read():\n    try:\n        raise ValueError(V[0])\n    except ValueError as e:\n        return e.args[0]",
    "ExitStack": "import contextlib\nL = [3.0 if CHANGED else 2.0]\ndef read():\n    with contextlib.ExitStack() as s:\n        return s.enter_context(contextlib.nullcontext(L[0]))",
    "a contextmanager that reads": "import contextlib\nL = [3.0 if CHANGED else 2.0]\n@contextlib.contextmanager\ndef c():\n    yield L[0]\ndef read():\n    with c() as v:\n        return v",
    "a walrus in a comprehension": "L = [3.0 if CHANGED else 2.0]" + _GET + "[v := one for one in L][0]",
}  # fmt: skip
PROGRAMS: dict[str, str] = {
    "x.is_shared()": _P.replace("{call}", "x * (3.0 if x.is_shared() else 2.0)") + "def run(call):\n    return call(ramp(4, 8).share_memory_() if CHANGED else ramp(4, 8))\n",
    "x.is_set_to": _P.replace("{call}", "x * (3.0 if x.is_set_to(W) else 2.0)") + "W = ramp(4, 8)\ndef run(call):\n    return call(torch.empty(0).set_(W) if CHANGED else ramp(4, 8))\n",
    "x._version": _P.replace("{call}", "x * (x._version + 2.0)") + "def run(call):\n    x = ramp(4, 8)\n    if CHANGED:\n        x.add_(0)\n    return call(x)\n",
    "x.untyped_storage().nbytes()": _P.replace("{call}", "x * (x.untyped_storage().nbytes() / 128.0)") + "def run(call):\n    return call(ramp(8, 8)[:4] if CHANGED else ramp(4, 8))\n",
    "x.dim_order()": _P.replace("{call}", "x.sum() * (x.dim_order()[1] + 2.0)") + "def run(call):\n    x = ramp(2, 3, 4, 4)\n    return call(x.to(memory_format=torch.channels_last) if CHANGED else x)\n",
    "x.is_contiguous(channels_last)": _P.replace("{call}", "x.sum() * (3.0 if x.is_contiguous(memory_format=torch.channels_last) else 2.0)") + "def run(call):\n    x = ramp(2, 3, 4, 4)\n    return call(x.to(memory_format=torch.channels_last) if CHANGED else x)\n",
    "channels_last with one channel": _P.replace("{call}", "torch.empty_like(x).stride(1) + x.sum()") + "def run(call):\n    x = ramp(2, 1, 4, 4)\n    return call(x.as_strided((2, 1, 4, 4), (16, 1, 4, 1)) if CHANGED else x)\n",
    "x.output_nr": _P.replace("{call}", "x * (x.output_nr + 2.0)") + "def run(call):\n    a, b = ramp(8, 8).requires_grad_().unbind(0)[0:2] if False else ramp(8, 8).requires_grad_().split(4)\n    return call(b if CHANGED else a)\n",
    "a sparse input": _P.replace("{call}", "x.to_dense() * (3.0 if x.is_coalesced() else 2.0)") + "def run(call):\n    x = ramp(4, 8).to_sparse()\n    return call(x if CHANGED else torch.sparse_coo_tensor(x.indices(), x.values(), x.shape))\n",
    "under vmap": _P.replace("{call}", "x.sum(0) * 2") + "def run(call):\n    return torch.vmap(call)(ramp(4, 8)) if CHANGED else call(ramp(4, 8))\n",
    "under grad": _P.replace("{call}", "(x * x).sum() + (x.requires_grad) * 1.0") + "def run(call):\n    return torch.func.grad(call)(ramp(4, 8)) if CHANGED else call(ramp(4, 8))\n",
    "under jvp": _P.replace("{call}", "(x * x).sum()") + "def run(call):\n    return torch.func.jvp(call, (ramp(4, 8),), (ramp(4, 8),))[1] if CHANGED else call(ramp(4, 8))\n",
    "under functional_call": "M = nn.Linear(8, 8)\nwith torch.no_grad():\n    M.weight.copy_(ramp(8, 8)); M.bias.fill_(0.25)\n" + _P.replace("{call}", "M(x)") + "def run(call):\n    if CHANGED:\n        D = {'weight': ramp(8, 8) * 3, 'bias': ramp(8)}\n        with torch.nn.utils.stateless._reparametrize_module(M, D):\n            return call(ramp(4, 8))\n    return call(ramp(4, 8))\n",
    "strides of a gradient": "def program(x):\n    return x.sin().t() + SALT\ndef run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    y.backward(ramp(4, 8).t() if CHANGED else ramp(8, 4))\n    return y, x.grad\n",
    "an expanded gradient": "def program(x):\n    return x.sin() * 2 + SALT\ndef run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    y.backward(ramp(1, 8).expand(4, 8) if CHANGED else ramp(4, 8))\n    return y, x.grad\n",
    "create_graph": "def program(x):\n    return (x.sin() * x).sum() + SALT\ndef run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    g, = torch.autograd.grad(y, x, create_graph=CHANGED)\n    return y, g.detach() * 1, g.requires_grad * 1.0\n",
    "a part of the outputs": "def program(x):\n    return x.sin() + SALT, x.cos()\ndef run(call):\n    x = ramp(4, 8).requires_grad_()\n    y = call(x)\n    y[1 if CHANGED else 0].sum().backward()\n    return x.grad\n",
    "retained gradient": "def program(x):\n    y = x * 2\n    y.retain_grad()\n    return y, y.sin() + SALT\ndef run(call):\n    x = ramp(4, 8).requires_grad_(True)\n    a, y = call(x)\n    (y * (3 if CHANGED else 2)).sum().backward()\n    return x.grad, a.grad\n",
    "materialized gradients": "V = CHANGED\nclass A(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        ctx.set_materialize_grads(V)\n        return x * 2, x * 3\n    @staticmethod\n    def backward(ctx, a, b):\n        return (a if a is not None else 0) + (7.0 if b is None else b + 1.0)\ndef program(x):\n    return A.apply(x)[0] + SALT\n" + _TRAINED,
    "mark_non_differentiable": "V = CHANGED\nclass A(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        y, z = x * 2, x * 3\n        if V:\n            ctx.mark_non_differentiable(z)\n        return y, z\n    @staticmethod\n    def backward(ctx, a, b):\n        return a + b\ndef program(x):\n    y, z = A.apply(x)\n    return y + z + SALT\n" + _TRAINED,
    "once_differentiable": "from torch.autograd.function import once_differentiable\nclass A(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x * 2\n    @staticmethod\n    def backward(ctx, g):\n        return g * 2\nif CHANGED:\n    A.backward = staticmethod(once_differentiable(lambda ctx, g: g * 3))\ndef program(x):\n    return A.apply(x) + SALT\n" + _TRAINED,
    "dynamic, a size of 1": "OPTIONS = {'dynamic': True}\n" + _P.replace("{call}", "x.sum() * (3.0 if x.shape[0] == 1 else 2.0) + x.expand(4, 8)[0, 0]") + "def run(call):\n    return call(ramp(1, 8) if CHANGED else ramp(4, 8))\n",
    "dynamic, n of 1": "OPTIONS = {'dynamic': True}\ndef program(x, n):\n    return x * n + (x.sum() if n == 1 else 0) + SALT\ndef run(call):\n    return call(ramp(4, 8), 1 if CHANGED else 5)\n",
    "dynamic, n of -1": "OPTIONS = {'dynamic': True}\ndef program(x, n):\n    return x.roll(n, 0) * (n // 3) + SALT\ndef run(call):\n    return call(ramp(4, 8), -1 if CHANGED else 5)\n",
    "dynamic, a big n": "OPTIONS = {'dynamic': True}\ndef program(x, n):\n    return x.double() * (n % 1000003) + SALT\ndef run(call):\n    return call(ramp(4, 8), 2 ** 40 + 3 if CHANGED else 5)\n",
    "dynamic, n beyond 64 bits": "OPTIONS = {'dynamic': True}\ndef program(x, n):\n    return x.double() * float(n % 1000003) + SALT\ndef run(call):\n    return call(ramp(4, 8), 2 ** 70 + 3 if CHANGED else 5)\n",
    "dynamic, -0.0": "import math\nOPTIONS = {'dynamic': True}\ndef program(x, n):\n    return torch.atan2(x * 0 + n, x * 0 - 1) + SALT\ndef run(call):\n    return call(ramp(4, 8), -0.0 if CHANGED else 0.0)\n",
    "dynamic, inf": "OPTIONS = {'dynamic': True}\ndef program(x, n):\n    return torch.clamp(x, max=n) * (1.0 if n < 100 else 2.0) + SALT\ndef run(call):\n    return call(ramp(4, 8), float('inf') if CHANGED else 2.5)\n",
    "dynamic, overlapping sizes": "OPTIONS = {'dynamic': True}\ndef program(x, y):\n    return (x.t() @ y).sum() * (3.0 if x.shape[1] == y.shape[1] else 2.0) + SALT\ndef run(call):\n    return call(ramp(6, 5), ramp(6, 5) if CHANGED else ramp(6, 9))\n",
    "dynamic, another offset": "OPTIONS = {'dynamic': True}\ndef program(x):\n    return x.as_strided((2, 2), (1, 1), x.storage_offset()).sum() + SALT\ndef run(call):\n    return call(ramp(6, 8)[2:] if CHANGED else ramp(4, 8))\n",
    "dynamic, sliced columns": "OPTIONS = {'dynamic': True}\n" + _P.replace("{call}", "x.reshape(-1)[::2].cumsum(0)") + "def run(call):\n    return call(ramp(6, 10)[:, 1:9] if CHANGED else ramp(4, 8))\n",
    "a subclass of Parameter": "class Own(nn.Parameter):\n    by = 3.0\nM = nn.Linear(8, 8)\nM.weight = (Own if CHANGED else nn.Parameter)(ramp(8, 8))\nM.bias = None\n" + _P.replace("{call}", "M(x) * getattr(M.weight, 'by', 2.0)"),
    "complex": _P.replace("{call}", "torch.view_as_real(x * 2).sum(-1)") + "def run(call):\n    x = torch.complex(ramp(4, 8), ramp(4, 8) + 1)\n    return call(x.to(torch.complex128) if CHANGED else x)\n",
    "autocast of a custom dtype": _P.replace("{call}", "x @ x.t()") + "def run(call):\n    with torch.autocast('cpu', torch.float16 if CHANGED else torch.bfloat16):\n        return call(ramp(4, 8) * 1.001)\n",
    "amp's custom_fwd": "class A(torch.autograd.Function):\n    @staticmethod\n    @torch.amp.custom_fwd(device_type='cpu', cast_inputs=torch.float64 if CHANGED else None)\n    def forward(ctx, x):\n        return x * 2\n    @staticmethod\n    @torch.amp.custom_bwd(device_type='cpu')\n    def backward(ctx, g):\n        return g * 2\n" + _P.replace("{call}", "A.apply(x)") + "def run(call):\n    with torch.autocast('cpu', torch.bfloat16):\n        return call(ramp(4, 8).requires_grad_())\n",
    "disallow_in_graph": _P.replace("{call}", "torch.sin(x)") + "def change():\n    torch._dynamo.disallow_in_graph(torch.sin); kit.BY = 3.0\ndef run(call):\n    return call(ramp(4, 8)) * getattr(kit, 'BY', 2.0)\n",
    "disable later": "def f(x):\n    return x * V[0]\nV = [3.0 if CHANGED else 2.0]\nif CHANGED:\n    f = torch.compiler.disable(f)\n" + _P.replace("{call}", "f(x)"),
    "allow_in_graph later": "V = [3.0 if CHANGED else 2.0]\ndef f(x):\n    return x * V[0]\nif CHANGED:\n    torch._dynamo.allow_in_graph(f)\n" + _P.replace("{call}", "f(x)"),
    "a compiled function inside": "V = [3.0 if CHANGED else 2.0]\n@torch.compile\ndef f(x):\n    return x * V[0]\n" + _P.replace("{call}", "f(x)"),
    "Module.compile inside": "class M1(nn.Module):\n    def forward(self, x):\n        return x * (3.0 if CHANGED else 2.0)\nM = M1()\nM.compile(backend='eager')\n" + _P.replace("{call}", "M(x)"),
    "py_kernels replaced": "O = torch.ops.aten.sin.default\n" + _P.replace("{call}", "torch.ops.aten.sin(x)") + "def change():\n    O.py_kernels = {**O.py_kernels, torch._C.DispatchKey.CompositeImplicitAutograd: lambda x: x.cos(), torch._C.DispatchKey.AutogradCPU: lambda x: x.cos()}\n    O._dispatch_cache.clear()\n",
    "a pytree of a builtin": "from torch.utils import _pytree\n" + _P.replace("{call}", "torch.cond(x.sum() > 0, lambda v: {'a': v[0] * 2, 'b': v[0] * 3}, lambda v: {'a': v[0] * 4, 'b': v[0] * 5}, ([x],))['a']") + "def change():\n    n = _pytree.SUPPORTED_NODES[dict]\n    _pytree.SUPPORTED_NODES[dict] = n._replace(flatten_fn=lambda d: ([*d.values()][::-1], [*d]))\n",
    "torch.Tensor's new method": "def program(x):\n    return x.hunt_method() + SALT\nif CHANGED:\n    torch.Tensor.hunt_method = lambda s: s * 3\nelse:\n    torch.Tensor.hunt_method = lambda s: s * 2\n",
    "torch.Tensor's new property": "def program(x):\n    return x.hunt_property + SALT\ntorch.Tensor.hunt_property = property((lambda s: s * 3) if CHANGED else (lambda s: s * 2))\n",
    "nn's new class": "class Own(nn.Module):\n    def forward(self, x):\n        return x * (3.0 if CHANGED else 2.0)\nnn.HuntLayer = Own\n" + _P.replace("{call}", "nn.HuntLayer()(x)"),
    "a subclass of nn.Linear, its base's method": "class Own(nn.Linear):\n    def extra(self, x):\n        return super().forward(x) * (3.0 if CHANGED else 2.0)\nM = Own(8, 8)\nwith torch.no_grad():\n    M.weight.copy_(ramp(8, 8)); M.bias.fill_(0.25)\n" + _P.replace("{call}", "M.extra(x)"),
    "metaclass of a module": "class Meta(type):\n    def __call__(cls, *a):\n        one = super().__call__(*a)\n        one.by = 3.0 if CHANGED else 2.0\n        return one\nclass Own(nn.Module, metaclass=Meta):\n    def forward(self, x):\n        return x * self.by\n" + _P.replace("{call}", "Own()(x)"),
    "deterministic fill": "torch.use_deterministic_algorithms(True)\ntorch.utils.deterministic.fill_uninitialized_memory = CHANGED\n" + _P.replace("{call}", "torch.where(torch.empty(4, 8).isnan(), x * 3, x * 2)"),
    "set_default_dtype in the function": "V = [torch.float64 if CHANGED else torch.float32]\ndef program(x):\n    with torch.device('cpu'):\n        return x * torch.tensor([1.0, 2.0], dtype=V[0]).element_size() + SALT\n",
}  # fmt: skip


def of_outside(_: random.Random) -> Iterator[Case]:
    """Yield a case for each thing of torch's, of a module's, and of an object's that holds a value."""
    group = "outside"
    for name, (call, change) in DATA.items():
        yield Case(group, name, _P.replace("{call}", call) + _changing(change))
    for name, (call, change) in LOWERED.items():
        source = _P.replace("{call}", call) + _changing(change)
        yield Case(group, name, source, lowered=True, judged_by_compile=True)
    for name, (call, change) in BELOW.items():
        source = _P.replace("{call}", call) + _changing(change)
        yield Case(group, name, source, judged_by_compile=True)
    for name, change in MODULES.items():
        yield Case(group, f"a module's {name}", f"{_MODEL}def change():\n    {change}\n")
    for name, before in HOLD.items():
        yield Case(group, name, f"{before}\ndef program(x):\n    return x * read() + SALT\n")
    for name, source in PROGRAMS.items():
        yield Case(group, name, source)


def _changing(change: str) -> str:
    return "def change():\n" + textwrap.indent(change, "    ") + "\n"
