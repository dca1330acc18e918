"""Build the library by which Triton asks the driver, without the driver.

A fresh host builds it with a compiler before its first kernel, so an entry holds it. The linker needs the
name of the driver's library, and none of its functions: those are bound when a process loads the library.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cachesvc_client.wire.errors import Unsupported

_DRIVER = "libcuda.so.1"


def build() -> None:
    """Have Triton build the library into its cache folder, where the client's hook sees it.

    Raises ``Unsupported`` without a C compiler, or where Triton builds it in another way.
    """
    from triton.backends.nvidia import driver
    from triton.runtime import build as builds

    load = builds._load_module_from_path
    with tempfile.TemporaryDirectory() as folder:
        try:
            _link_stub(Path(folder))
            builds._load_module_from_path = _name_module
            driver.compile_module_from_src(
                src=Path(driver.dirname, "driver.c").read_text(),
                name="cuda_utils",
                library_dirs=[driver.libdevice_dir, folder],
                include_dirs=driver.include_dirs,
                libraries=driver.libraries,
            )
        except (OSError, subprocess.SubprocessError, RuntimeError, AttributeError) as error:
            raise Unsupported(
                f"without a GPU: Triton's helper cannot be built: {type(error).__name__}: {str(error)[:200]}",
                hint="install gcc",
            ) from None
        finally:
            builds._load_module_from_path = load


def _link_stub(folder: Path) -> None:
    """Make a library without functions under the driver's name."""
    command = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{_DRIVER}", "-x", "c", "/dev/null"]
    subprocess.run([*command, "-o", str(folder / _DRIVER)], check=True, capture_output=True)


def _name_module(name: str, path: str) -> Any:
    """Stand in for the load, which would bind the driver's functions."""
    return SimpleNamespace(__name__=name, __file__=path)
