"""The files of the kind `torch_extensions`.

PyTorch builds an extension in ``TORCH_EXTENSIONS_DIR/<name>``, by default below the user's cache folder, and
looks for it by its name and by ninja's records of times and commands. Those records do not move, so
PyTorch's own files never travel. cachesvc keeps libraries beside them, under a key of its own::

    cachesvc/<host>/<key>/<read>/<name>.so       the library
    cachesvc/<host>/<key>/<read>/depends.json    what else its build read, see `dependencies`

``<host>`` is the id of the builder's host (`rules.host_id`), ``<key>`` is `request.BuildRequest.key`,
and ``<read>`` is a digest of ``depends.json``: sources that include two versions of a header have one key and
two libraries.
"""

from __future__ import annotations

from ..rules import DEPENDS, host_rules

LIBRARY_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}"
"""Matches the names of extensions whose libraries are kept."""

RULES = host_rules("torch_extensions", LIBRARY_NAME + r"\.so", DEPENDS)
