"""What torch's releases do differently in ``torch.utils.cpp_extension``, in one place.

Read in the sources of 2.8 to 2.14; run on 2.13. 2.14 holds a lock of the operating system during a build,
where earlier releases hold a file; the kind does not touch either.
"""

from __future__ import annotations

PARAMETERS = frozenset(
    {
        *("name", "sources", "build_directory", "verbose", "keep_intermediates"),
        *("extra_cflags", "extra_cuda_cflags", "extra_sycl_cflags", "extra_ldflags", "extra_include_paths"),
        *("with_cuda", "with_sycl", "is_python_module", "is_standalone"),
    }
)
"""Parameters of ``_jit_compile``, since 2.8. A parameter that is not here may decide the machine code, so a
call with it has no key."""
