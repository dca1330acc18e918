"""Build the library by which Triton asks the driver, without the driver.

A fresh host builds it with a compiler before its first kernel, so an entry holds it. The linker needs a
library of the driver's name with its functions, and takes none of them: a process binds its driver's when it
loads the helper. Where the library has none of the functions, a linker may leave out its name (Ubuntu's does,
by ``--as-needed``), and then no process can load the helper.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cachesvc_client.wire.errors import Unsupported

_DRIVER = "libcuda.so.1"
_FUNCTION = re.compile(r"\bcu[A-Z]\w*(?=\()")
"""Matches the functions of the driver that a C source calls."""


def build() -> None:
    """Have Triton build the library into its cache folder, where the client's hook sees it.

    Raises ``Unsupported`` without a C compiler, or where Triton builds it in another way.
    """
    from triton.backends.nvidia import driver
    from triton.runtime import build as builds

    load = builds._load_module_from_path
    source = Path(driver.dirname, "driver.c").read_text()
    with tempfile.TemporaryDirectory() as folder:
        try:
            _link_stub(Path(folder), source)
            builds._load_module_from_path = _name_module
            helper = driver.compile_module_from_src(
                src=source,
                name="cuda_utils",
                library_dirs=[driver.libdevice_dir, folder],
                include_dirs=driver.include_dirs,
                libraries=driver.libraries,
            )
            if _DRIVER.encode() not in Path(helper.__file__).read_bytes():
                raise RuntimeError(f"the linker left out {_DRIVER}")
        except (OSError, subprocess.SubprocessError, RuntimeError, AttributeError) as error:
            raise Unsupported(
                f"without a GPU: Triton's helper cannot be built: {type(error).__name__}: {str(error)[:200]}",
                hint="install gcc",
            ) from None
        finally:
            builds._load_module_from_path = load


def _link_stub(folder: Path, source: str) -> None:
    """Make a library under the driver's name, with the functions that the source names."""
    functions = sorted(set(_FUNCTION.findall(source)))
    stub = folder / "stub.c"
    stub.write_text("".join(f"void {name}(void) {{}}\n" for name in functions))
    command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{_DRIVER}", str(stub)]
    subprocess.run([*command, "-o", str(folder / _DRIVER)], check=True, capture_output=True)


def _name_module(name: str, path: str) -> Any:
    """Stand in for the load, which would bind the driver's functions."""
    return SimpleNamespace(__name__=name, __file__=path)
