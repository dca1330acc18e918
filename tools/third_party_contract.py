"""An import-linter contract: which packages from outside each room may import.

import-linter's own contracts deny by name, so a package that no one thought of passes, and they want every
module that they name to exist. Here each room lists what it may import and everything else is denied.
"""

from __future__ import annotations

import sys
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class ThirdPartyContract(Contract):
    """``allowed``: lines of ``room: package, package``.

    A module obeys the line with the longest room that has it, and the line of a root package is for the
    package's own module alone; a module of no line may import the standard library and nothing else.
    ``if TYPE_CHECKING`` imports count or not as the linter is configured.
    """

    type_name = "third_party"

    allowed: Any = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Kept if every direct import of a foreign package is allowed. ``ValueError`` on a bad line."""
        del verbose
        rooms = dict(_parse(line) for line in self.allowed)
        roots = {module.split(".")[0] for module in rooms}
        foreign = {module for module in graph.modules if graph.is_module_squashed(module)}
        found = [
            (importer, package, _lines(graph, importer, package))
            for package in sorted(foreign - sys.stdlib_module_names)
            for importer in sorted(graph.find_modules_that_directly_import(package))
            if importer.split(".")[0] in roots and package not in _allowed(rooms, importer)
        ]
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """One line for each import."""
        for importer, package, lines in check.metadata["found"]:
            output.print_error(f"{importer} may not import {package} (l.{lines})", bold=False)


def _parse(line: str) -> tuple[str, set[str]]:
    room, colon, packages = line.partition(":")
    if not colon:
        raise ValueError(f"third_party: {line!r} is not 'room: package, package'")
    return room.strip(), {name.strip() for name in packages.split(",") if name.strip()}


def _allowed(rooms: dict[str, set[str]], module: str) -> set[str]:
    holding = [room for room in rooms if module == room or ("." in room and module.startswith(room + "."))]
    return rooms[max(holding, key=len)] if holding else set()


def _lines(graph: ImportGraph, importer: str, package: str) -> str:
    details = graph.get_import_details(importer=importer, imported=package)
    return ", ".join(str(detail["line_number"]) for detail in details)
