"""Test the kind by cachesvc's kit: ``CACHESVC_KINDS=cffi pytest test_kind.py``, with the wheel installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachesvc_kind_cffi import KIND, unclear

from cachesvc_client.kinds.kind import KindState
from cachesvc_client.kinds.testing import Example, KindConformance

NAME = "_cffi__x3f1d20c1x9ab0d44e.cpython-311-x86_64-linux-gnu.so"


class TestKind(KindConformance):
    kind = KIND
    examples = (Example(NAME, b"\x7fELF a library"),)
    others = (
        *("_cffi__x3f1d20c1x9ab0d44e.c", "build/temp.o", f"own/{NAME}", f"{NAME}.tmp", "libc.so"),
        *(f"../{NAME}", f"/{NAME}", NAME.replace("_cffi_", "_cffi_" + "a" * 60)),
    )

    def use(self, state: KindState, root: Path) -> set[str]:
        state.use_folder(root)
        state._used.add(NAME)
        return {NAME}


@pytest.mark.parametrize(
    ("source", "options", "environ"),
    [
        ('#include "mine.h"', {}, {}),
        ("#include <zlib.h>", {}, {}),
        ("# include HEADER", {}, {}),
        ("#include_next <math.h>", {}, {}),
        ("#/**/include <zlib.h>", {}, {}),
        ("#\\\ninclude <zlib.h>", {}, {}),
        ("%:include <zlib.h>", {}, {}),
        ("#if __has_include(<zlib.h>)\n#endif", {}, {}),
        ("#embed <data>", {}, {}),
        ('asm(".incbin \\"file\\"");', {}, {}),
        ("", {"sources": ["more.c"]}, {}),
        ("", {"extra_compile_args": ["-O3"]}, {}),
        ("", {"libraries": ["z"]}, {}),
        ("", {}, {"CFLAGS": "-O3"}),
        ("", {}, {"CPATH": "/opt/include"}),
    ],
)
def test_what_the_checksum_lacks_is_not_shared(source: str, options: dict, environ: dict) -> None:
    assert unclear(source, options, environ)


def test_a_source_over_the_c_library_is_shared() -> None:
    options = {"libraries": ["m"], "define_macros": [("A", "1")]}
    assert (
        unclear(
            "#include <math.h>\n  # include <stdint.h>\n#ifdef X\n#endif\nint f;", options, {"PATH": "/bin"}
        )
        == ""
    )
