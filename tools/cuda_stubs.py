#!/usr/bin/env python3
"""Makes stubs of NVIDIA's libraries, so that a CUDA build of torch runs on a machine that has none of them.

``cuda_stubs.py TORCH``, where TORCH is the folder of an installed torch package. Each NVIDIA library that
torch's own libraries need and that is not in ``TORCH/lib`` gets a stub of the same name there, where the
dynamic linker looks first. A stub defines the symbols that torch asks of that library, under the symbol
versions that torch asks for. A function of a stub answers 100 (cudaErrorNoDevice), so
`torch.cuda.is_available` answers False. Needs gcc and readelf.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

NVIDIA = re.compile(r"lib(cu|nv|nccl)")
NVIDIA_SYMBOL = re.compile(r"(cu|nv|nccl|__cuda|cupti|cufile|_?nvtx)", re.IGNORECASE)
ANSWERS_TEXT = tuple(
    "ErrorString ErrorName StatusString GetStatusName GetResultString LastErrorString".split()
)
ANSWERS_SUCCESS = ("cudaGetLastError", "cudaPeekAtLastError")


@dataclass
class Symbols:
    """Holds what torch's libraries ask of other libraries.

    ``libraries``: the NVIDIA libraries that are missing, in the order of need. ``versioned``: the symbols
    that name a version, by library and version. ``plain``: the symbols that name no version. ``data``: the
    symbols that are data, not functions. ``defined``: the symbols that torch's libraries define themselves.
    """

    libraries: list[str] = field(default_factory=list)
    versioned: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)
    data: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)


def main(arguments: list[str]) -> int:
    """Runs the command; answers its exit status."""
    if len(arguments) != 1 or not (Path(arguments[0]) / "lib").is_dir():
        print("usage: cuda_stubs.py TORCH, the folder of an installed torch package", file=sys.stderr)
        return 2
    torch = Path(arguments[0])
    remove_stubs(torch / "lib")
    symbols = read_symbols(torch)
    for name in symbols.libraries:
        source, script = write_source(name, symbols)
        build_stub(torch / "lib" / name, source, script)
    print(f"cuda_stubs: {len(symbols.libraries)} stubs in {torch / 'lib'}", file=sys.stderr)
    return 0


def remove_stubs(lib: Path) -> None:
    """Removes the stubs of an earlier run; a mark beside each stub names it."""
    for mark in lib.glob(".stub-*"):
        (lib / mark.name.removeprefix(".stub-")).unlink(missing_ok=True)
        mark.unlink()


def read_symbols(torch: Path) -> Symbols:
    """Reads what the libraries of the package ``torch`` ask for."""
    libraries = [path for path in sorted((torch / "lib").glob("*.so*")) if not path.is_symlink()]
    libraries += sorted(torch.glob("_C*.so"))
    symbols = Symbols()
    for path in libraries:
        for name in re.findall(r"\(NEEDED\).*\[(.+?)\]", readelf("-d", path)):
            # Only NVIDIA's libraries; a copy that the system has may be of another version.
            if NVIDIA.match(name) and not (torch / "lib" / name).exists() and name not in symbols.libraries:
                symbols.libraries.append(name)
    for path in libraries:
        add_symbols(path, symbols)
    return symbols


def add_symbols(path: Path, symbols: Symbols) -> None:
    """Adds what one library asks for and what it defines."""
    owners = owners_of_versions(path)
    for line in readelf("--dyn-syms", path).splitlines():
        parts = line.split()
        if len(parts) < 8 or not parts[0].endswith(":"):
            continue
        kind, bind, section, name = parts[3], parts[4], parts[6], parts[7]
        symbol, _, version = name.partition("@")
        version = version.lstrip("@")
        if section != "UND":
            symbols.defined.add(symbol)
            continue
        if kind == "OBJECT":
            symbols.data.add(symbol)
        if version:
            if owners.get(version) in symbols.libraries:
                of_library = symbols.versioned.setdefault(owners[version], {})
                of_library.setdefault(version, set()).add(symbol)
        elif bind != "WEAK":
            symbols.plain.add(symbol)


def owners_of_versions(path: Path) -> dict[str, str]:
    """Answers which library each symbol version belongs to, as the library at ``path`` needs them."""
    owners: dict[str, str] = {}
    library = ""
    for line in readelf("-V", path).splitlines():
        if match := re.search(r"File: (\S+)", line):
            library = match[1]
        elif library and (match := re.search(r"Name: (\S+)\s+Flags", line)):
            owners[match[1]] = library
    return owners


def write_source(name: str, symbols: Symbols) -> tuple[str, str]:
    """Answers the C source of the stub ``name`` and the linker's version script, which may be empty."""
    groups = {version: sorted(names) for version, names in symbols.versioned.get(name, {}).items()}
    if name == library_of_plain_symbols(symbols):
        groups[""] = sorted(s for s in symbols.plain - symbols.defined if NVIDIA_SYMBOL.match(s))
    lines = [definition(symbol, symbols.data) for names in groups.values() for symbol in names]
    script = [f"{version} {{ global: {'; '.join(names)}; }};" for version, names in groups.items() if version]
    # A stub without any symbol would be an empty source, which compilers warn about.
    return "\n".join([*lines, "extern int cachesvc_stub;", ""]), "\n".join(script)


def library_of_plain_symbols(symbols: Symbols) -> str:
    """Answers which stub defines the symbols that name no version: the dynamic linker takes any."""
    cudnn = [name for name in symbols.libraries if name.startswith("libcudnn")]
    return (cudnn or symbols.libraries)[0]


def definition(symbol: str, data: set[str]) -> str:
    """Answers the C definition of one symbol."""
    if symbol in data:
        return f"char {symbol}[4096];"
    if symbol.endswith(ANSWERS_TEXT):
        return f'const char *{symbol}(void) {{ return "a stub, without CUDA"; }}'
    if symbol == "cudaGetDeviceCount":
        return f"int {symbol}(int *n) {{ if (n) *n = 0; return 100; }}"
    if symbol in ANSWERS_SUCCESS:
        return f"int {symbol}(void) {{ return 0; }}"
    return f"long {symbol}(void) {{ return 100; }}"


def build_stub(target: Path, source: str, script: str) -> None:
    """Compiles one stub to ``target`` and leaves a mark beside it."""
    with tempfile.TemporaryDirectory() as folder:
        code, versions = Path(folder, "stub.c"), Path(folder, "stub.map")
        code.write_text(source)
        versions.write_text(script)
        command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-fno-builtin", f"-Wl,-soname,{target.name}"]
        if script:
            command.append(f"-Wl,--version-script={versions}")
        subprocess.run([*command, "-o", str(target), str(code)], check=True)
    (target.parent / f".stub-{target.name}").touch()


def readelf(option: str, path: Path) -> str:
    """Answers what readelf prints about ``path``."""
    command = ["readelf", "-W", option, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
