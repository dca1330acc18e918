"""Says in words what each guard of Dynamo's compares of its object.

A recorded guard has these words in the place of the object. A service describes its own object, and has
PyTorch make the guard from that one if the words are equal. So nothing of a builder's objects is pickled, and
a record that does not fit changes nothing in a service.

The rows are the guards of ``torch._dynamo.guards.GuardBuilder`` in torch 2.11 to 2.15. A guard that has
no row, and an object that has no words, make a frame that is not recorded.
"""

from __future__ import annotations

import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from ....graphs.code import targets
from ..describe.digests import digest
from ..describe.groups import describe_of_job
from ..describe.instances import describe_instance, is_instance
from ..describe.objects import describe, followed_digest, text_of
from ..describe.optimizers import describe_optimizer, is_optimizer
from ..describe.sharded import describe_sharding

Words = Callable[[Any, Any, Any], str]
"""Takes the guard, its object and the sizes and strides that the compiled code has for the tensor; returns
what the guard compares. Raises ``TypeError`` for an object that has no words."""


def guard_words(guard: Any, value: Any, layout: Any) -> str:
    """Return what a guard compares of an object. Raises ``TypeError`` for a guard of an unknown kind.

    ``layout``: the sizes and strides of a tensor that the code is compiled for; ``None`` for one of any size.
    """
    name = guard.create_fn_name()
    words = WORDS.get(name)
    if words is None:
        raise TypeError(REFUSED.get(name, f"guards of the kind {name} are not known"))
    text = words(guard, value, layout)
    return text + _moved(value) if isinstance(value, OrderedDict) else text


def _moved(value: OrderedDict[Any, Any]) -> str:
    """Return in words how the members of an ``OrderedDict`` were moved; an empty text if they were not. A
    trace goes through them in their own order, and PyTorch compares the order of the dict below that."""
    place = {key: number for number, key in enumerate(dict.keys(value))}
    moved = [place[key] for key in OrderedDict.__iter__(value)]
    return f" moved {moved}" if moved != sorted(moved) else ""


def source_of_object(guard: Any) -> Any:
    """Return the source of the object that a guard is about; ``None`` for a guard of the process.

    Up to torch 2.12 a guard that an object has an attribute names the attribute, which may not be there.
    """
    source = guard.originating_source
    if not guard.name:
        return None
    if guard.create_fn_name() != "HASATTR" or isinstance(guard.create_fn, functools.partial):
        return source
    source = source if hasattr(source, "member") else source.base
    return source.base


def _nothing(_guard: Any, _value: Any, _layout: Any) -> str:
    """The guard itself has all that it compares, as plain values."""
    return ""


def _identity(guard: Any, value: Any, layout: Any) -> str:
    """What the object is: its place and a digest of its code, or all its values."""
    if type(value) in _plain_tensors():
        return _tensor(guard, value, layout)
    if is_instance(value):
        return describe_instance(value)
    return describe_optimizer(value) if is_optimizer(value) else describe(value)


def _type(_guard: Any, value: Any, _layout: Any) -> str:
    """The class of the object, with its attributes by value, and how a module is sharded."""
    kind = type(getattr(value, "real_obj", value) if _is_script_object(value) else value)
    return f"{describe(kind)}{describe_sharding(value)}"


def _is_script_object(value: Any) -> bool:
    return type(value).__name__ == "FakeScriptObject"


def _value(_guard: Any, value: Any, _layout: Any) -> str:
    """The class and the value."""
    return f"{describe(type(value))} {describe(value)}"


def _base_value(_guard: Any, value: Any, _layout: Any) -> str:
    """The class of the object, and its value as one of the plain class below that."""
    base = next((kind for kind in (bool, int, float, complex, str, bytes) if isinstance(value, kind)), None)
    if base is None:
        raise TypeError(f"an object of {type(value).__qualname__} has no plain value")
    return f"{describe(type(value))} {base(value)!r}"


def _attribute(guard: Any, value: Any, _layout: Any) -> str:
    """Whether the attribute is there, and the class."""
    create, source = guard.create_fn, guard.originating_source
    if isinstance(create, functools.partial):
        name = [*create.args, *create.keywords.values()][0]
    else:
        name = source.member if hasattr(source, "member") else source.base.member
    return f"{name} {hasattr(value, name)} of {describe(type(value))}"


def _keys(guard: Any, value: Any, _layout: Any) -> str:
    """The class, and the keys in their order."""
    import torch

    if value is torch.utils._pytree.SUPPORTED_NODES:
        return f"pytree {digest(text_of([*value]))}"
    if "DICT_VERSION" in (guard.guard_types or ()):
        return describe(value)
    return f"{describe(type(value))} {digest(text_of([*dict.keys(value)]))}"


def _keys_of_mapping(_guard: Any, value: Any, _layout: Any) -> str:
    """The keys in their order."""
    if not isinstance(value, types.MappingProxyType):
        raise TypeError(f"the keys of {type(value).__qualname__} have no description")
    return digest(text_of([*value]))


def _length(_guard: Any, value: Any, _layout: Any) -> str:
    """The class and the length."""
    return f"{describe(type(value))} of {len(value)}"


def _iterator(name: str, _guard: Any, value: Any, _layout: Any) -> str:
    """The class and the state of the iterator."""
    from torch._dynamo import utils

    return f"{describe(type(value))} {text_of(getattr(utils, name)(value))}"


def _is_there(guard: Any, value: Any, layout: Any) -> str:
    """Whether it is ``None``; of a gradient all that Dynamo compares of a tensor."""
    if type(value) in _plain_tensors():
        return _tensor(guard, value, layout)
    return str(value is not None)


def _dispatch_keys(_guard: Any, value: Any, _layout: Any) -> str:
    """The set of dispatch keys."""
    return str(value.raw_repr())


def _copied_when_written(_guard: Any, value: Any, _layout: Any) -> str:
    """Whether the tensor is copied when it is written."""
    import torch._dynamo.guards

    return str(torch._dynamo.guards._try_is_cow_tensor(value))  # torch 2.15


def _metadata(_guard: Any, value: Any, _layout: Any) -> str:
    """The class, and what ``__tensor_flatten__`` says of it."""
    return f"{describe(type(value))} {text_of(value.__tensor_flatten__()[1])}"


def _tensor(_guard: Any, value: Any, layout: Any) -> str:
    """All that PyTorch compares of a tensor, with the sizes that the code is compiled for alone."""
    import torch

    kept = value.layout if value.layout is not torch.strided else _layout_words(value, layout)
    keys = torch._C._dispatch_keys(value)
    words = f"{describe(type(value))} {value.dtype} {value.device} {kept}"
    words += f" requires_grad={value.requires_grad} {keys}"
    return f"{words} {_code_of_classes(value)}" if type(value) not in _plain_tensors() else words


def _code_of_classes(value: Any) -> str:
    """Return a digest of the code that operators run of the program's classes of a tensor and of those in it:
    AOTAutograd traces it, after Dynamo."""
    return followed_digest(targets.classes_of(value), "the class of a tensor")


@functools.cache
def _plain_tensors() -> tuple[type, ...]:
    import torch

    return torch.Tensor, torch.nn.Parameter


def _layout_words(value: Any, layout: Any) -> str:
    """Return the sizes and the strides of a tensor; ``*`` for one that may be any."""
    sizes, strides = layout if layout is not None else (value.shape, value.stride())
    return f"{_known(value.shape, sizes)} {_known(value.stride(), strides)}"


def _known(live: Any, compiled: Any) -> str:
    pairs = zip(live, compiled, strict=True)
    return ",".join(str(int(here)) if isinstance(there, int) else "*" for here, there in pairs)


def _no_saved_tensors_hooks(_guard: Any, _value: Any, _layout: Any) -> str:
    """That there are no hooks of saved tensors."""
    import torch

    if torch._functorch._aot_autograd.utils.top_saved_tensors_hooks():
        raise TypeError("the program has hooks of saved tensors")
    return ""


def _default_device(_guard: Any, _value: Any, _layout: Any) -> str:
    """The default device."""
    import torch

    return str(torch.utils._device.CURRENT_DEVICE)


def _of_job(_guard: Any, value: Any, _layout: Any) -> str:
    """The process group or the device mesh, with its ranks."""
    words = describe_of_job(value)
    if not words:
        raise TypeError(f"a function of {type(value).__qualname__} says what is compared")
    return words


def _no_functorch(_guard: Any, _value: Any, _layout: Any) -> str:
    """That no transform of functorch is active."""
    import torch

    if torch._functorch.pyfunctorch.retrieve_all_functorch_interpreters():
        raise TypeError("the frame runs inside a transform of functorch")
    return ""


WORDS: Mapping[str, Words] = {
    **dict.fromkeys(
        # Two names of one object, keys that are or are not in a container, and what a guard reads of the
        # process and compares with what the record holds of it.
        (
            *("DUPLICATE_INPUT", "DICT_CONTAINS", "DICT_NOT_CONTAINS", "SET_CONTAINS", "SET_NOT_CONTAINS"),
            *("NOT_PRESENT_IN_GENERIC_DICT", "EMPTY_NN_MODULE_HOOKS_DICT", "SHAPE_ENV", "GLOBAL_STATE"),
            *("TORCH_FUNCTION_STATE", "DUAL_LEVEL"),
            # Part of the state that GLOBAL_STATE compares, and nothing of their own (torch 2.11 to 2.15).
            *("GRAD_MODE", "DETERMINISTIC_ALGORITHMS", "FSDP_TRAINING_STATE"),
        ),
        _nothing,
    ),
    **dict.fromkeys(
        (
            *("ID_MATCH", "FUNCTION_MATCH", "CLASS_MATCH", "MODULE_MATCH", "BUILTIN_MATCH", "NN_MODULE"),
            *("CLOSURE_MATCH", "DTENSOR_SPEC_MATCH"),
        ),
        _identity,
    ),
    **dict.fromkeys(("TYPE_MATCH", "FAKE_SCRIPT_TYPE_MATCH"), _type),
    **dict.fromkeys(("BOOL_MATCH", "NONE_MATCH", "EQUALS_MATCH", "CONSTANT_MATCH"), _value),
    "CONSTANT_SUBCLASS_MATCH": _base_value,
    "HASATTR": _attribute,
    **dict.fromkeys(("DICT_KEYS_MATCH", "DICT_VERSION"), _keys),
    "MAPPING_KEYS_CHECK": _keys_of_mapping,
    "SEQUENCE_LENGTH": _length,
    "TUPLE_ITERATOR_LEN": functools.partial(_iterator, "tuple_iterator_len"),
    "RANGE_ITERATOR_MATCH": functools.partial(_iterator, "normalize_range_iter"),
    "COUNT_ITERATOR_MATCH": functools.partial(_iterator, "normalize_count_iter"),
    "LIST_REVERSEITERATOR_LEN": functools.partial(_iterator, "list_reverseiterator_len"),
    **dict.fromkeys(("NOT_NONE_MATCH", "WEAKREF_ALIVE"), _is_there),
    "DISPATCH_KEY_SET_MATCH": _dispatch_keys,
    "TENSOR_SUBCLASS_METADATA_MATCH": _metadata,
    "TENSOR_MATCH": _tensor,
    "COW_TENSOR_MATCH": _copied_when_written,
    "AUTOGRAD_SAVED_TENSORS_HOOKS": _no_saved_tensors_hooks,
    "DEFAULT_DEVICE": _default_device,
    "OPAQUE_OBJ_GUARD_FN_MATCH": _of_job,
    "FUNCTORCH_STACK_MATCH": _no_functorch,
}
"""What each guard compares, by its name."""
REFUSED = {
    "CURRENT_STREAM_MATCH": "streams of a GPU are not compared",
}
"""The guards that make a frame which is not recorded, with the reason."""
