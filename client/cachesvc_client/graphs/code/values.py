"""Describes values that code reads, as texts that are equal in every process with an equal value.

`describe_plain` has the types that have a text by themselves. What has no text there is code or an object,
and `followed` follows it. Nothing is called that an application could have put there.
"""

from __future__ import annotations

import hashlib
import re
import struct
import sys
import types
from collections import deque
from typing import Any

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range)
"""Types whose ``repr`` says everything of a value."""
_OF_TORCH = frozenset(("dtype", "device", "layout", "memory_format", "finfo", "iinfo", "qscheme"))
"""Names of torch's types whose values have such a ``repr``."""
_OF_LIBRARY = frozenset(
    (
        "decimal.Decimal", "fractions.Fraction", "datetime.date", "datetime.datetime", "datetime.timedelta",
        "datetime.timezone", "uuid.UUID", "pathlib.PosixPath", "pathlib.PurePosixPath", "builtins.slice",
    )
)  # fmt: skip
"""Types of the standard library whose values have such a ``repr``."""
_OF_ZONES = ("builtins.type", "builtins.NoneType")
"""What stands for the time zone of what has none."""
_DECIDE_NOTHING = frozenset(
    (
        "logging.Logger", "logging.RootLogger", "_thread.lock", "_thread.RLock", "threading.Condition",
        "threading.Event", "threading.Semaphore", "threading.BoundedSemaphore", "_io.TextIOWrapper",
        "_frozen_importlib.ModuleSpec", "_frozen_importlib_external.SourceFileLoader", "typing.TypeVar",
        "typing.ParamSpec", "typing._SpecialForm", "_abc._abc_data", "builtins.getset_descriptor",
        "dataclasses._DataclassParams", "torch.library.Library", "torch._logging._internal.LogRegistry",
        "builtins.ellipsis", "dataclasses._MISSING_TYPE", "dataclasses._HAS_DEFAULT_FACTORY_CLASS",
    )
)  # fmt: skip
"""Types whose objects change no result: what writes logs, what waits for threads, what only types have."""
_STACK = re.compile(r'(  File "[^"\n]+", line \d+, in [^\n]+\n(    [^\n]*\n)*)+')
MAX_ELEMENTS = 1 << 20
"""Elements of the largest tensor or array whose values are digested."""


class Undescribed(ValueError):
    """Is raised for what no text describes, with the reason in words."""


def short(text: str) -> str:
    """Return twelve letters of a text's digest: enough to tell two versions of the text apart."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def type_name(kind: type) -> str:
    """Return module and name of a type."""
    return f"{kind.__module__}.{kind.__qualname__}"


def place_of(value: Any) -> str:
    """Return a text by which the items of a set are alike in order in each process, as far as one has it."""
    if type(value) in _PLAIN:
        return f"{type_name(type(value))} {value!r}"
    named = value if isinstance(value, (type, types.FunctionType)) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def plain_base(value: Any) -> Any:
    """Return the plain type that a program's class of a value is made of; ``None`` if there is none."""
    return next((kind for kind in (bool, int, float, complex, str, bytes) if isinstance(value, kind)), None)


def is_of_subclass(value: Any) -> bool:
    """Return whether a value is a tensor of a class that is not torch's own two."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor) and not is_tensor(value)


def data_of_subclass(value: Any) -> str:
    """Return the data of a tensor of a program's class that has its own, and not that of tensors in it."""
    torch = sys.modules["torch"]
    default = vars(torch.Tensor).get("__torch_dispatch__")
    own = next(
        (vars(one)["__torch_dispatch__"] for one in type(value).__mro__ if "__torch_dispatch__" in vars(one)),
        default,
    )
    if own is not default and own is not torch._C._disabled_torch_dispatch_impl:
        return ""
    with torch._C.DisableTorchFunctionSubclass():
        return _tensor(torch.Tensor.as_subclass(value.detach(), torch.Tensor))


def hidden_in(value: Any) -> Any:
    """Return a class of an object that is written in C and has what no attribute shows, such as a buffer;
    ``None`` if there is none. Of torch's own the attributes say all."""
    for kind in type(value).__mro__:
        is_seen = kind in _SEEN or issubclass(kind, (*_SEEN[1:], BaseException)) or is_of_python(kind)
        if not (is_seen or kind.__module__.startswith(("torch", "_thread"))):
            return kind
    return None


_SEEN = (
    object,
    *_PLAIN[:6],
    dict,
    list,
    tuple,
    set,
    frozenset,
    deque,
    types.ModuleType,
    types.SimpleNamespace,
)
"""Classes in C whose objects have attributes alone, or what a digest has."""


def is_stack(value: Any) -> bool:
    """Return whether a value says only from where code ran: a list that `traceback.format_stack` returned. A
    start under another program, or from another folder, has another one."""
    return type(value) is list and bool(value) and all(map(_is_place, value))


def _is_place(value: Any) -> bool:
    return type(value) is str and value.startswith('  File "') and _STACK.fullmatch(value) is not None


def is_at_home(kind: type) -> bool:
    """Return whether a type is the one that its module has under its name, or is written in C. A class of a
    program may say that it is another module's."""
    home = sys.modules.get(kind.__module__)
    return not is_of_python(kind) or getattr(home, kind.__qualname__, None) is kind


def is_of_python(kind: type) -> bool:
    """Return whether a class statement made a class: it can be changed, and its module is no extension."""
    file = str(getattr(sys.modules.get(kind.__module__), "__file__", ""))
    is_of_c = kind.__module__ in sys.builtin_module_names or file.endswith(".so")
    return bool(kind.__flags__ & _HEAP and not kind.__flags__ & _IMMUTABLE) and not is_of_c


_HEAP, _IMMUTABLE = 1 << 9, 1 << 8
"""Flags of a type: made while the process runs, and such that nothing can be put into it."""


def is_value(value: Any) -> bool:
    """Return whether a value has no state: it is what its text says, for ever."""
    kind = type(value)
    return kind in _PLAIN or (kind.__module__ == "torch" and kind.__name__ in _OF_TORCH)


def describe_plain(value: Any) -> str | None:
    """Return the text of a value that is no code and holds none; ``None`` for another value.

    Raises ``ValueError`` with the reason for a tensor or array whose values are too many.
    """
    kind = type(value)
    if kind in _PLAIN:
        if value == value:
            return repr(value)
        return f"nan {struct.pack('dd', value.real, value.imag).hex()}"
    if not is_at_home(kind):
        return None
    if kind.__module__ == "torch" and kind.__name__ in _OF_TORCH:
        return repr(value)
    name = type_name(kind)
    if name in _OF_LIBRARY and type_name(type(getattr(value, "tzinfo", kind))) in (*_OF_ZONES, *_OF_LIBRARY):
        return f"{name} {value!r}"
    if name in _DECIDE_NOTHING:
        return name
    if name == "triton.language.core.dtype":
        return f"{name} {sorted(map(str, vars(value).items()))}"
    if kind.__module__ in _OF_TYPES and kind.__name__ in _TYPING:
        return f"{name} {value!r}" if " at 0x" not in repr(value) else name
    if name in ("re.Pattern", "_regex.Pattern"):  # the second is of the package regex, which vLLM reads
        lists = {key: sorted(map(repr, one)) for key, one in getattr(value, "named_lists", {}).items()}
        return f"pattern {value.pattern!r} {value.flags} {sorted(lists.items()) or ''}"
    if kind.__module__ == "numpy" or kind.__module__.startswith("numpy."):
        return _array(value)
    return _tensor(value) if is_tensor(value) else None


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of no class of a program's."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter)


_OF_TYPES = ("typing", "types", "typing_extensions", "collections.abc")
_TYPING = frozenset(
    ("GenericAlias", "UnionType", "_GenericAlias", "_UnionGenericAlias", "_SpecialGenericAlias",
    "_CallableType",
     "_CallableGenericAlias", "_LiteralGenericAlias", "_TupleType", "NewType", "ForwardRef",
     "_AnnotatedAlias")
)  # fmt: skip


def _array(value: Any) -> str | None:
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.dtype):
        if value.metadata:
            raise ValueError("a type of numpy with metadata")
        return f"numpy dtype {value.descr if value.fields else value.str}"
    if isinstance(value, numpy.generic):
        return f"numpy {value.dtype.str} {value.tobytes().hex()}"
    if type(value) is numpy.ufunc:
        return f"numpy ufunc {value.__name__}" if _is_own_ufunc(value) else None
    if type(value) is not numpy.ndarray:
        return None
    if value.size > MAX_ELEMENTS or value.dtype.hasobject:
        raise ValueError(f"an array of {value.size} elements")
    kept = f"{_array(value.dtype)} {value.shape} {value.strides} {value.flags.writeable}"
    return f"array {kept} {hashlib.sha256(value.tobytes()).hexdigest()}"


def _is_own_ufunc(value: Any) -> bool:
    """Return whether a function on arrays is of numpy or scipy, and not of a program's function."""
    homes = (
        sys.modules.get(one) for one in ("numpy", "numpy._core.umath", "numpy.core.umath", "scipy.special")
    )
    return any(getattr(home, value.__name__.partition(" ")[0], None) is value for home in homes)


def _tensor(value: Any) -> str:
    """Return the description of a tensor with its values, which a trace may write into a graph."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    head = f"{value.dtype} {tuple(value.shape)} {value.device} {value.layout} {value.requires_grad}"
    if not all(isinstance(size, int) for size in value.shape) or value.numel() > MAX_ELEMENTS:
        raise ValueError(f"a tensor of {value.numel()} elements")
    if value.layout != torch.strided or value.device.type == "meta":
        raise ValueError(f"a tensor of the layout {value.layout} on {value.device}")
    with _disable_current_modes(), torch.no_grad():
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"tensor {head} {value.stride()} {hashlib.sha256(data).hexdigest()}"
