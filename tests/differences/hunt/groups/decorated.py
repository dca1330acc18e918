"""Cases for decorators, functions that raise while they are traced, and classes that are edited."""

from __future__ import annotations

import random
from collections.abc import Iterator

from ..case import Case

_DECORATORS = {
    "a wrapper": "def one(f):\n    return lambda *a: f(*a) * 2\ndef two(f):\n    return lambda *a: f(*a) * 3\n",
    "functools.wraps": "def one(f):\n    @functools.wraps(f)\n    def g(*a):\n        return f(*a) * 2\n    return g\ndef two(f):\n    @functools.wraps(f)\n    def g(*a):\n        return f(*a) * 3\n    return g\n",
    "one factory": "def by(n):\n    def decorate(f):\n        @functools.wraps(f)\n        def g(*a):\n            return f(*a) * n\n        return g\n    return decorate\none, two = by(2), by(3)\n",
    "a class": "class One:\n    n = 2\n    def __init__(self, f):\n        self.f = f\n    def __call__(self, *a):\n        return self.f(*a) * self.n\n    def __get__(self, o, k=None):\n        return functools.partial(self, o)\nclass Two(One):\n    n = 3\none, two = One, Two\n",
    "an attribute": "def one(f):\n    f.n = 2\n    return f\ndef two(f):\n    f.n = 3\n    return f\n",
    "a partial": "def times(f, n, *a):\n    return f(*a) * n\ndef one(f):\n    return functools.partial(times, f, 2)\ndef two(f):\n    return functools.partial(times, f, 3)\n",
    "no_grad": "one, two = torch.no_grad(), torch.enable_grad()\n",
    "autocast": "one, two = torch.autocast('cpu', torch.bfloat16), torch.autocast('cpu', enabled=False)\n",
    "a context manager": "import contextlib\nN = [1]\n@contextlib.contextmanager\ndef first():\n    yield\n@contextlib.contextmanager\ndef second():\n    yield\ndef one(f):\n    def g(*a):\n        with first():\n            return f(*a) * 2\n    return g\ndef two(f):\n    def g(*a):\n        with second():\n            return f(*a) * 3\n    return g\n",
    "lru_cache": "one, two = functools.lru_cache(None), (lambda f: functools.lru_cache(None)(lambda *a: f(*a) * 3))\n",
    "dropped": "def one(f):\n    return f\ndef two(f):\n    return lambda *a: a[-1] * 7\n",
    "twice": "def one(f):\n    return lambda *a: f(*a) * 2\ntwo = lambda f: one(one(f))\n",
    "disable": "one, two = torch._dynamo.disable, (lambda f: torch._dynamo.disable(lambda *a: f(*a) * 3))\n",
    "nested region": "one, two = torch.compiler.nested_compile_region, (lambda f: torch.compiler.nested_compile_region(lambda *a: f(*a) * 3))\n",
}  # fmt: skip
_USES = {
    "a function": "@(two if CHANGED else one)\ndef body(x):\n    return x @ x.t() * getattr(globals().get('body'), 'n', 1)\ndef program(x):\n    return body(x) + SALT\n",
    "a method": "class A:\n    @(two if CHANGED else one)\n    def body(self, x):\n        return x @ x.t() * getattr(A.body, 'n', 1)\nONE = A()\ndef program(x):\n    return ONE.body(x) + SALT\n",
    "a module's forward": "class A(nn.Module):\n    @(two if CHANGED else one)\n    def forward(self, x):\n        return x @ x.t() * getattr(A.forward, 'n', 1)\nONE = A()\ndef program(x):\n    return ONE(x) + SALT\n",
    "a static method": "class A:\n    @staticmethod\n    @(two if CHANGED else one)\n    def body(x):\n        return x @ x.t() * getattr(A.body, 'n', 1)\ndef program(x):\n    return A.body(x) + SALT\n",
    "the compiled function": "@(two if CHANGED else one)\ndef program(x):\n    return x @ x.t() * getattr(globals().get('program'), 'n', 1) + SALT\n",
}  # fmt: skip
_RAISES = {
    "raise number": "def fail(x):\n    raise ValueError({n})\ndef program(x):\n    try:\n        return fail(x)\n    except ValueError as error:\n        return x * error.args[0] + SALT\n",
    "raise or not": "def fail(x):\n    if {n} > 2.5:\n        raise ValueError\n    return x * 2\ndef program(x):\n    try:\n        return fail(x) + SALT\n    except ValueError:\n        return x * 3 + SALT\n",
    "another type": "def fail(x):\n    raise (ValueError if {n} > 2.5 else KeyError)\ndef program(x):\n    try:\n        return fail(x)\n    except ValueError:\n        return x * 3 + SALT\n    except KeyError:\n        return x * 2 + SALT\n",
    "raise below": "def deep(x):\n    raise ValueError({n})\ndef fail(x):\n    return deep(x)\ndef program(x):\n    try:\n        return fail(x)\n    except ValueError as error:\n        return x * error.args[0] + SALT\n",
    "raise in a method": "class A:\n    def fail(self):\n        raise ValueError({n})\nONE = A()\ndef program(x):\n    try:\n        ONE.fail()\n    except ValueError as error:\n        return x * error.args[0] + SALT\n",
    "raise in a function of a dict": "def fail():\n    raise ValueError({n})\nD = {'f': fail}\ndef program(x):\n    try:\n        D['f']()\n    except ValueError as error:\n        return x * error.args[0] + SALT\n",
    "raise in __getattr__": "class A:\n    def __getattr__(self, name):\n        raise AttributeError({n})\nONE = A()\ndef program(x):\n    try:\n        ONE.v\n    except AttributeError as error:\n        return x * error.args[0] + SALT\n",
    "finally": "def fail(x, out):\n    try:\n        raise ValueError\n    finally:\n        out.append({n})\ndef program(x):\n    out = []\n    try:\n        fail(x, out)\n    except ValueError:\n        pass\n    return x * out[0] + SALT\n",
    "StopIteration": "class It:\n    def __iter__(self):\n        return self\n    n = 0\n    def __next__(self):\n        self.n += 1\n        if self.n > {n}:\n            raise StopIteration\n        return self.n\ndef program(x):\n    for one in It():\n        x = x + one\n    return x + SALT\n",
    "assert": "def fail(x):\n    assert {n} < 2.5\n    return x * 2\ndef program(x):\n    try:\n        return fail(x) + SALT\n    except AssertionError:\n        return x * 3 + SALT\n",
    "hasattr of a property": "class A:\n    @property\n    def v(self):\n        if {n} > 2.5:\n            raise AttributeError\n        return 1\nONE = A()\ndef program(x):\n    return x * (2 if hasattr(ONE, 'v') else 3) + SALT\n",
    "own exception's attribute": "class Own(Exception):\n    by = {n}\ndef program(x):\n    try:\n        raise Own\n    except Own as error:\n        return x * error.by + SALT\n",
    "own exception's __init__": "class Own(Exception):\n    def __init__(self):\n        self.by = {n}\ndef program(x):\n    try:\n        raise Own()\n    except Own as error:\n        return x * error.by + SALT\n",
}  # fmt: skip
_EDITS = {
    "method added": "class A:\n    pass\nONE = A()\ndef program(x):\n    return x * (ONE.f() if hasattr(ONE, 'f') else 2.0) + SALT\ndef change():\n    A.f = lambda self: 3.0\n",
    "method deleted": "class B:\n    def f(self):\n        return 3.0\nclass A(B):\n    def f(self):\n        return 2.0\nONE = A()\ndef program(x):\n    return x * ONE.f() + SALT\ndef change():\n    del A.f\n",
    "method swapped with another": "class A:\n    def f(self):\n        return 2.0\n    def g(self):\n        return 3.0\nONE = A()\ndef program(x):\n    return x * ONE.f() + SALT\ndef change():\n    A.f, A.g = A.g, A.f\n",
    "base added": "class A:\n    pass\nclass M:\n    def f(self):\n        return 3.0\nclass C(A):\n    def f2(self):\n        return getattr(super(), 'f', lambda: 2.0)()\nONE = C()\ndef program(x):\n    return x * ONE.f2() + SALT\ndef change():\n    C.__bases__ = (A, M) if False else (M,)\n",
    "class replaced under its name": "class A:\n    def f(self):\n        return 2.0\nclass B:\n    def f(self):\n        return 3.0\ndef program(x):\n    return x * A().f() + SALT\ndef change():\n    globals()['A'] = B\n",
    "class replaced, same qualname": "def made(n):\n    class A:\n        def f(self):\n            return n\n    return A\nA = made(2.0)\ndef program(x):\n    return x * A().f() + SALT\ndef change():\n    globals()['A'] = made(3.0)\n",
    "module's class replaced": "MODEL = nn.Sequential(nn.ReLU())\ndef program(x):\n    return MODEL(x) + SALT\ndef change():\n    MODEL[0].__class__ = nn.Identity\n",
    "forward of own module": "class A(nn.Module):\n    def forward(self, x):\n        return x * 2\nONE = A()\ndef program(x):\n    return ONE(x) + SALT\ndef change():\n    A.forward = lambda self, x: x * 3\n",
    "forward of own module, compiled": "class A(nn.Module):\n    def forward(self, x):\n        return x * 2 + SALT\nONE = A()\ndef make():\n    return ONE\ndef change():\n    A.forward = lambda self, x: x * 3 + SALT\n",
    "helper of own module": "class A(nn.Module):\n    def f(self, x):\n        return x * 2\n    def forward(self, x):\n        return self.f(x) + SALT\nONE = A()\ndef make():\n    return ONE\ndef change():\n    A.f = lambda self, x: x * 3\n",
    "two equal closures": "def made(n):\n    def f(x):\n        return x * n\n    return f\nFS = [made(2.0), made(2.0)]\ndef program(x):\n    return FS[0](x) + FS[1](x) + SALT\ndef change():\n    FS[1] = made(3.0)\n",
    "two equal functions": "def f(x):\n    return x * 2\ndef g(x):\n    return x * 3\nFS = {'a': f, 'b': f}\ndef program(x):\n    return FS['a'](x) + FS['b'](x) + SALT\ndef change():\n    FS['b'] = g\n",
    "two equal objects": "class A:\n    v = 2.0\n    def __init__(self):\n        self.w = 2.0\nL = [A(), A()]\ndef program(x):\n    return x * L[0].w + x.sin() * L[1].w + SALT\ndef change():\n    L[1].w = 3.0\n",
    "lambda on the same line": "FS = (lambda x: x * 2, lambda x: x * 3)\nF1 = FS[1] if CHANGED else FS[0]\ndef program(x):\n    return F1(x) + SALT\n",
    "patched while imported": "import math\nif CHANGED:\n    math.tau = 3.0\nTAU = math.tau\ndef program(x):\n    return x * TAU + SALT\n",
    "another helper, same name": "if CHANGED:\n    def helper(x):\n        return x * 3\nelse:\n    def helper(x):\n        return x * 2\ndef program(x):\n    return helper(x) + SALT\n",
    "another compiled function, same name": "if CHANGED:\n    def program(x):\n        return x * 3 + SALT\nelse:\n    def program(x):\n        return x * 2 + SALT\n",
    "another constant in the function": "if CHANGED:\n    def program(x):\n        return x * 2.5 + SALT\nelse:\n    def program(x):\n        return x * 2.0 + SALT\n",
}  # fmt: skip


def of_decorated(_: random.Random) -> Iterator[Case]:
    """Yield cases for each decorator and use, each way to raise, and each edit."""
    for what, text in _DECORATORS.items():
        for use, program in _USES.items():
            yield Case("decorated", f"{what} of {use}", text + program)
    numbers = {
        "a global": ("N = 2.0\n", "N", "globals()['N'] = 3.0"),
        "other code": ("", "{number}", "pass"),
        "a list": ("N = [2.0]\n", "N[0]", "N[0] = 3.0"),
        "the environment": ("", "float(os.environ.get('HUNT', '2.0'))", "os.environ['HUNT'] = '3.0'"),
    }
    for what, text in _RAISES.items():
        for where, (before, number, change) in numbers.items():
            if where == "other code":
                helper, program = text.split("def program", 1)
                one, other = helper.replace("{n}", "2.0"), helper.replace("{n}", "3.0")
                body = f"if CHANGED:\n{_indent(other)}else:\n{_indent(one)}def program{program}"
            else:
                body = before + text.replace("{n}", number) + f"def change():\n    {change}\n"
            yield Case("decorated", f"{what} by {where}", body)
    for what, text in _EDITS.items():
        yield Case("decorated", what, text)


def _indent(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())
