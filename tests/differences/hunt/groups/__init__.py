"""The groups of cases, by name: each is a function that yields `Case`s for the torch that is installed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from ..case import Case
from . import (
    below,
    control,
    decorated,
    dispatcher,
    in_place,
    libraries,
    nested,
    objects,
    operators,
    outside,
    patched,
    patched_modules,
    programs,
    reads,
    same_objects,
    states,
    subclasses,
    tables,
    unseen,
    untold,
)

GROUPS: dict[str, Callable[[random.Random], Iterable[Case]]] = {
    "control": control.of_control,
    "patched functional": patched.of_functional,
    "patched torch": patched.of_torch,
    "patched Tensor": patched.of_tensor,
    "patched below": patched.of_functions_below,
    "patched nn forward": patched_modules.of_forward,
    "patched nn below": patched_modules.of_functions_below,
    "in place": in_place.of_changes_in_place,
    "reads": reads.of_reads,
    "process": reads.of_processes,
    "dispatcher": dispatcher.of_dispatcher,
    "tables": tables.of_tables,
    "operators": operators.of_operators,
    "subclasses": subclasses.of_subclasses,
    "nested": nested.of_nested,
    "objects": objects.of_objects,
    "same objects": same_objects.of_same_objects,
    "decorated": decorated.of_decorated,
    "libraries": libraries.of_libraries,
    "states": states.of_states,
    "unseen": unseen.of_unseen,
    "between": unseen.of_between,
    "untold": untold.of_untold,
    "outside": outside.of_outside,
    "below": below.of_below,
    "programs": programs.of_programs,
}
