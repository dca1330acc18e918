"""The files of the kind `flashinfer`.

FlashInfer builds a module in ``FLASHINFER_WORKSPACE_BASE/.cache/flashinfer/<version>/<architectures>/cached_ops``,
by default below the user's home, and asks ninja each time whether the library is up to date. Ninja compares
times and command lines with absolute paths, so that a copy of that folder is built again. FlashInfer's own
files never travel. cachesvc keeps libraries beside them, under a key of its own::

    cachesvc/<host>/<key>/<read>/<module>.so     the library
    cachesvc/<host>/<key>/<read>/depends.json    what its build read, see `builds.dependencies`

``<host>`` is the id of the builder's host (`rules.host_id`), ``<key>`` is `request.read_spec`'s, and
``<read>`` is a digest of ``depends.json``: two compilers, or two versions of a header, make two libraries of
one key.
"""  # noqa: E501 - FlashInfer's path

from __future__ import annotations

from ..rules import DEPENDS, host_rules

MODULE_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,249}"
"""Matches the names of modules whose libraries are kept. Those of attention name all its types."""

RULES = host_rules("flashinfer", MODULE_NAME + r"\.so", DEPENDS)
