"""The files of the kind `triton`.

``TRITON_CACHE_DIR``, by default ``~/.triton/cache``; Inductor points it at ``<inductor>/triton/<device>``.
Layout, read in Triton 3.4 to 3.9::

    <KEY>/<kernel>.{ttir,ttgir,llir,ptx,cubin,json,...}    immutable
    <KEY>/__grp__<kernel>.json                             {"child_paths": {name: absolute path}}
    <KEY>/cuda_utils.<abi>.so                              the driver's helper, built with gcc once per host
    <KEY>/__triton_launcher.<abi>.so                       one per signature that is launched without Inductor
    <KEY>/<kernel>.autotune.json                           timings of ``triton.autotune``

KEY is a hash in base32. For a kernel it covers Triton's sources, the kernel's, the target and the options;
for a helper only its C source and the platform's name (``triton/runtime/build.py``), not the C library, which
is a factor of its own. Nothing is built for the host's CPU (no ``-march``). Inductor launches most kernels
without a launcher of Triton's; those whose name is longer than the 150 letters of a file name need one.

The group files hold absolute paths, so a moved folder would be a miss (docs/pytorch.md, 3): they travel with
a placeholder. The key is in the last two parts of a path, whatever the folder was called.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from ..rules import FileRule, KindRules

PLACEHOLDER = "{cachesvc:triton}"
"""Stands for the kind's folder in group files that travel."""


def _portable(data: bytes, root: Path) -> bytes:
    """Return a group file with a placeholder for the folder; data of another form is returned as it is."""
    del root
    import json

    try:
        group = json.loads(data)
        paths = {name: PurePosixPath(path) for name, path in group["child_paths"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return data
    mapped = {name: "/".join((PLACEHOLDER, *path.parts[-2:])) for name, path in paths.items()}
    return json.dumps({**group, "child_paths": mapped}).encode()


def _local(data: bytes, root: Path) -> bytes:
    """Return a group file with ``root`` for the placeholder.

    Raises ``ValueError`` for anything but paths of this kind below the placeholder: Triton opens what a group
    file names.
    """
    import json

    try:
        group = json.loads(data)
        children = dict(group["child_paths"])
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no group file of Triton's: {type(error).__name__}") from None
    for name, path in children.items():
        place, _, rest = str(path).partition("/")
        if place != PLACEHOLDER or RULES.rule(rest) is None:
            raise ValueError(f"names {str(path)[:120]!r}, which is no file of this kind")
        children[name] = str(root / rest)
    return json.dumps({**group, "child_paths": children}).encode()


_KEY = r"[A-Z2-7]{20,64}"
RULES = KindRules(
    "triton",
    (
        FileRule(
            _KEY + r"/__grp__[A-Za-z0-9_.+-]{1,200}\.json",
            portable=_portable,
            local=_local,
            last=True,
        ),
        FileRule(
            _KEY + r"/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,200}"
            r"\.(json|ttir|ttgir|llir|ptx|cubin|hsaco|amdgcn|source|so)"
        ),
    ),
    deferrable=True,
)
