"""More programs of `frames_read_models`: what Dynamo reads, or runs, and does not guard."""

import copy
import copyreg
import enum

import torch
from frames_read_models import X, change, compiled, program, times

# One tensor under a local and a global name ------------------------------------------------------

WEIGHTS = [X.clone()]
GIVEN = [WEIGHTS[0]]


@program
def local_and_global_name():
    """Dynamo relates two local names, or two global ones, alone."""
    return torch.compile(lambda x: times(x, 2 if x is WEIGHTS[0] else 1))(GIVEN[0])


@change
def change_local_and_global_name():
    GIVEN[0] = X.clone()


# The interpreter's own modules ---------------------------------------------------------------------


class Copied:
    count = 1


class Other:
    count = 2


@program
def table_of_the_interpreter():
    """Dynamo guards nothing that it reads through a global of the interpreter's own modules."""
    return compiled(lambda x: times(x, copy.copy(COPIED).count))


COPIED = Copied()


@change
def change_table_of_the_interpreter():
    copyreg.pickle(Copied, lambda _: (Other, ()))


# Code that Dynamo runs -----------------------------------------------------------------------------

COUNTS = {"missing": 1}


class Lookup(enum.Enum):
    ONE = 1
    TWO = 2

    @classmethod
    def _missing_(cls, _):
        return cls(COUNTS["missing"])


@program
def lookup_of_an_enum():
    """Dynamo calls the enumeration while it traces."""
    return compiled(lambda x: times(x, Lookup(77).value))


@change
def change_lookup_of_an_enum():
    COUNTS["missing"] = 2
