"""``python -m tools.house``: prints where the code breaks the limits of the house.

The limits: no circle of imports, local ones counted; the server imports of the client what it may; nothing
outside of a kind's folder names the kind; files, folders, classes and bags of fields have a size that one
person can hold; no two callables by position, which no one sees swapped. What breaks one today is in
``tests/house/broken.txt``, a list that may only become shorter: a new line is refused, and so is a line that
is not true any more. ``--write`` writes the list.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTED = ROOT / "tests" / "house" / "broken.txt"
PACKAGES = {"cachesvc": ROOT / "cachesvc", "cachesvc_client": ROOT / "client" / "cachesvc_client"}
LINES, FILES, METHODS, FIELDS = 400, 20, 20, 10
"""What a module, a folder, a class and a bag of fields have at most."""
FOR_SERVERS = (
    *("wire", "bundle", "trust", "trust_root", "environment", "config", "http"),
    *("atomic", "publication", "console", "queries"),
)
"""Rooms of the client from which the server may import, beside ``kinds.kind``. ``trust_root`` reads the
metadata of trust, ``atomic`` replaces files, ``publication`` seals and sends what a builder or an operator
publishes. Both programs print by ``console`` and ask by ``queries``."""
FOR_ROOMS: dict[str, tuple[str, ...]] = {
    "cachesvc.agent": ("node",),  # the agent fills the store of each node
    "cachesvc.cli.client": ("commands",),  # offers the client's commands under this program's name
    "cachesvc.oci": ("kinds",),  # an image of MCV has files of a kind, which that kind's rules rewrite
    "cachesvc.warm.claims": ("claims",),  # a builder claims what it compiles, as a service does
    "cachesvc.warm.gpuless": ("graphs",),  # keys have the GPU that is described, and no stand-in for it
    "cachesvc.warm.kinds_used": ("kinds", "hooks"),  # asks kinds what a builder must know of them
    "cachesvc.warm.worker": ("*",),  # runs where the user's model runs: a client in truth
}
"""What single rooms of the server may import of the client besides; ``*``: every room."""
RECORDS = (
    *("cachesvc_client.wire.", "cachesvc.schema.", "cachesvc.index.tables"),
    *("cachesvc.settings.", "cachesvc_client.config."),
    *("cachesvc.warm.spec.spec", "cachesvc.warm.verdict.results", "cachesvc.warm.worker.phase"),
)
"""Beginnings of modules whose classes are records of the wire, of settings, of tables, or the form of a file:
a target of a spec has the keys of its TOML table, an outcome is a row of the report ``cachesvc.warm/2``, and
a worker answers its builder with the file of one phase."""
_KINDS = "cachesvc_client.kinds."
_OTHER_MEANINGS = ("cuda", "flashinfer", "inductor", "triton", "vllm")
"""Kinds whose names mean something else too: a device of torch, a backend of ``torch.compile``, packages and
the factors of their versions. Their texts count where they stand for a kind, see `_texts_of_kinds`."""


@dataclass(frozen=True)
class Module:
    """One module: its name, its file, and what it imports of these packages, local imports too."""

    name: str
    file: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.file.read_text())

    @property
    def package(self) -> str:
        """The package in which a relative import of one dot looks."""
        return self.name if self.file.name == "__init__.py" else self.name.rpartition(".")[0]


def modules() -> dict[str, Module]:
    """Return the modules of both packages by name."""
    found = {}
    for package, folder in PACKAGES.items():
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            name = ".".join((package, *(part for part in parts if part != "__init__")))
            found[name] = Module(name, file)
    return found


def broken() -> set[str]:
    """Return a line for each place that breaks a limit."""
    known = modules()
    imports = {name: set(_imports(module, known)) for name, module in known.items()}
    imports |= {front: set() for front in PACKAGES}  # a front offers what is behind it, and is its version
    return {
        *(f"circle: {', '.join(circle)}" for circle in _circles(imports)),
        *_server_imports(imports),
        *_named_kinds(known, imports),
        *(line for module in known.values() for line in _of_module(module)),
        *_large_classes(known, imports),
        *_full_folders(),
    }


def _imports(module: Module, known: Mapping[str, Module]) -> Iterator[str]:
    """Yield the modules that one imports at run time."""
    for node in _at_run_time(module.tree):
        if isinstance(node, ast.Import):
            yield from (one for alias in node.names if (one := _longest(alias.name, known)))
        elif isinstance(node, ast.ImportFrom):
            parents = module.package.split(".")
            beginning = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*beginning, *([node.module] if node.module else [])])
            for alias in node.names:
                if (one := _longest(f"{base}.{alias.name}", known)) and one != module.name:
                    yield one


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those that are for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _at_run_time(child)


def _longest(name: str, known: Mapping[str, Module]) -> str:
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def _circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules of which each reaches each other (by Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(imports[name]):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            place = stack.index(name)
            group = sorted(stack[place:])
            del stack[place:]
            if len(group) > 1:
                found.append(group)

    sys.setrecursionlimit(10_000)
    for name in sorted(imports):
        if name not in order:
            visit(name)
    return found


def _server_imports(imports: Mapping[str, set[str]]) -> Iterator[str]:
    for name, others in imports.items():
        if name.partition(".")[0] != "cachesvc":
            continue
        allowed = (*FOR_SERVERS, *_additions(name))
        for other in others:
            package, _, rest = other.partition(".")
            room = rest.partition(".")[0]
            if package != "cachesvc_client" or not rest or "*" in allowed:
                continue
            if room not in allowed and rest != "kinds.kind":
                yield f"server imports {room} of the client: {name}"


def _additions(name: str) -> Iterator[str]:
    """Yield what the rooms around a module may import of the client besides."""
    for room, rooms in FOR_ROOMS.items():
        if f"{name}.".startswith(f"{room}."):
            yield from rooms


def _named_kinds(known: Mapping[str, Module], imports: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield the modules outside of a kind's folder that import it or have its name as a text."""
    kinds = {name.removesuffix(".kind").rpartition(".")[2] for name in known if name.endswith(".kind")}
    kinds &= {name.removeprefix(_KINDS) for name in known if name.startswith(_KINDS)}
    for name, module in known.items():
        if name == _KINDS.rstrip("."):  # the list of them
            continue
        texts = set(_texts(module.tree))
        clear = {text for node in _texts_of_kinds(module.tree) for text in _texts(node)}
        for kind in kinds:
            inside = f"{_KINDS}{kind}"
            if name == inside or name.startswith(f"{inside}."):
                continue
            imported = any(f"{one}.".startswith(f"{inside}.") for one in imports[name])
            if imported or kind in (clear if kind in _OTHER_MEANINGS else texts):
                yield f"kind {kind} is named: {name}"


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _texts_of_kinds(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield where a text can only stand for a kind: in a look-up by the kind, a comparison with ``kind``, an
    argument ``kind``, or a constant of kinds."""
    looks_up = re.compile(r"kinds|roots|RULES|BY_NAME")
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and looks_up.search(ast.unparse(node.value)):
            yield node.slice
        elif isinstance(node, ast.Compare) and re.search(r"\bkind\b", ast.unparse(node)):
            yield node
        elif isinstance(node, ast.keyword) and node.arg == "kind":
            yield node.value
        elif isinstance(node, ast.Assign):
            yield from [node.value] if "KIND" in ast.unparse(node.targets[0]) else []


def _of_module(module: Module) -> Iterator[str]:
    if len(module.file.read_text().splitlines()) > LINES:
        yield f"above {LINES} lines: {module.name}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            fields = sum(isinstance(one, ast.AnnAssign) for one in node.body)
            if fields > FIELDS and _is_bag(node) and not module.name.startswith(RECORDS):
                yield f"above {FIELDS} fields: {module.name}.{node.name}"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            positional = (*node.args.posonlyargs, *node.args.args)
            if sum(_is_callable(one.annotation) for one in positional) > 1:
                yield f"two callables by position: {module.name}.{node.name}"


def _large_classes(known: Mapping[str, Module], imports: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield the classes with too many public methods. Those of base classes count: an object has them all.
    A class that adds none to a base that is too large itself is not named again."""
    nodes = {
        (name, node.name): node
        for name, module in known.items()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }

    def bases(name: str, node: ast.ClassDef) -> Iterator[tuple[str, str]]:
        for base in node.bases:
            last = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            places = ((one, last) for one in (name, *imports[name]))
            yield from (place for place in places if nodes.get(place, node) is not node)

    def methods(name: str, node: ast.ClassDef) -> set[str]:
        inherited = (methods(one, nodes[one, last]) for one, last in bases(name, node))
        return _public_methods(node).union(*inherited)

    for (name, _), node in nodes.items():
        of_bases = [methods(one, nodes[one, last]) for one, last in bases(name, node)]
        every = methods(name, node)
        if len(every) > METHODS and every not in of_bases:
            yield f"above {METHODS} public methods: {name}.{node.name}"


def _public_methods(node: ast.ClassDef) -> set[str]:
    functions = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    return {one.name for one in functions if not one.name.startswith("_")}


def _is_bag(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(one) for one in node.decorator_list) or any(
        ast.unparse(base).endswith("NamedTuple") for base in node.bases
    )


def _is_callable(annotation: ast.expr | None) -> bool:
    return annotation is not None and "Callable[" in ast.unparse(annotation)


def _full_folders() -> Iterator[str]:
    for package, root in PACKAGES.items():
        for folder in (root, *(one for one in root.rglob("*") if one.is_dir())):
            if sum(one.name != "__init__.py" for one in folder.glob("*.py")) > FILES:
                yield f"above {FILES} files: {'.'.join((package, *folder.relative_to(root).parts))}"


def main() -> int:
    """Print what is new and what is mended; return 1 if there is any."""
    now = broken()
    if "--write" in sys.argv[1:]:
        NOTED.write_text("".join(f"{line}\n" for line in sorted(now)))
        return 0
    noted = set(NOTED.read_text().splitlines())
    print("".join(f"new: {line}\n" for line in sorted(now - noted)), end="")
    print("".join(f"mended, take it off the list: {line}\n" for line in sorted(noted - now)), end="")
    return int(now != noted)


if __name__ == "__main__":
    sys.exit(main())
