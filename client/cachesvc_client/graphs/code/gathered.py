"""Gathers what all code that a digest follows has together, and describes what it asks for by that: a state
counts only if some code has the name by which it is read."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from . import asked, hash_seed, questions, registries, settings, states, variables
from .instructions import makes_packages
from .reading import names_in
from .values import Undescribed


class Gathered:
    """Contain what code and values have together.

    Attributes:
        kept: All that is followed; referenced, so that no address is used again.
        codes: The code of a program.
        names: The names in the code.
        constants: The texts in code and values.
        parts: The texts out of which code may make the name of a variable.
        silent: Values that decide nothing unless code asks for their state.
        modules: Modules of libraries that code has under no name of its own.
        kinds: Classes of libraries, each once.
        libraries: The names of modules of libraries whose functions or classes code has.
        packages: Which of the functions that ask for packages are called.
        sets: The sets that stand in objects, by the names of the attributes.
        makes_names: Whether some code reads attributes by names that it makes.
    """

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.codes: list[types.CodeType] = []
        self.names: set[str] = set()
        self.constants: set[str] = set()
        self.parts: set[str] = set()
        self.silent: list[Any] = []
        self.modules: list[types.ModuleType] = []
        self.kinds: dict[type, None] = {}
        self.libraries: set[str] = set()
        self.packages: set[str] = set()
        self.sets: dict[str, list[Any]] = {}
        self.makes_names = False

    def note_environment(self, name: str, value: Any, code: types.CodeType) -> None:
        """Note that code reads the environment. Raises `Undescribed` where none can say which variables."""
        self.names.update(variables.ENVIRONMENT)
        self.constants.update(names_in(code))
        self.parts.update(variables.parts_of_variables(code, name, value))
        if variables.reads_all_variables(code):
            raise Undescribed("code that reads the whole environment")

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield what a program registered or put where code of a library reads it, by place."""
        yield from registries.handlers(self.constants, self.names)
        yield from registries.of_json(self.names)
        yield from asked.global_hooks()
        for kind in list(self.kinds):
            yield from registries.copies(kind, self.names)
            yield from asked.data_of(kind, self.names)
        for module in sorted({name.partition(".")[0].lstrip("_") for name in self.libraries}):
            yield from asked.put_into_package(module)

    def unknown(self) -> Iterator[str]:
        """Yield what the code may ask of modules that it reaches by no name of its own."""
        return questions.of_modules(self.modules, self.names)

    def lines(self) -> Iterator[str]:
        """Yield the states for which code asks. Raises `Undescribed` for one that no text describes."""
        if self.names & variables.ENVIRONMENT:
            yield from variables.variables(self.constants, self.parts, self.names)
        yield from asked.told(self.kept, self.names)
        yield from map(str, settings.of_process().items())
        yield from settings.below(self.names)
        yield from states.states(self.silent, self.names)
        yield from hash_seed.orders(self.sets, self.codes)
        yield from registries.registered((one for one in self.kinds if hasattr(one, "_abc_impl")), self.kept)
        if self.packages and any(map(makes_packages, self.codes)):
            raise Undescribed("code that makes the name of a package")
        yield from registries.packages(self.constants, self.names, self.packages)
