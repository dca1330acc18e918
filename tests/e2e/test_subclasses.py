"""Test services whose tensors are subclasses that say more of themselves than PyTorch's cache of traces can
take in: what can be found in another process is found, and of the rest the report names the object."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachesvc_client.bundle.seal import SigningKey
from tests.releases import TORCH

from .harness import SCALAR, run

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(not (2, 13) <= TORCH < (2, 15), reason="others say of other objects what they are"),
]


def test_metadata_of_subclasses_are_found_under_another_hash_seed_or_named(tmp_path: Path) -> None:
    bundle, key = tmp_path / "subclasses.cachesvc", SigningKey.generate()
    key.save(tmp_path / "key")
    variables = {**SCALAR, "CACHESVC_TRUSTED_KEYS": str(key.public)}
    arguments = ("build", str(bundle), str(tmp_path / "key"))
    built = run("subclass.py", *arguments, place=tmp_path / "a", PYTHONHASHSEED="1", **variables)
    assert set(map(tuple, built.answer["taken"].values())) == {("miss",), ("bypass",)}, built.answer
    served = run("subclass.py", "serve", str(bundle), place=tmp_path / "b", PYTHONHASHSEED="2", **variables)
    answer = served.answer
    assert answer["state"] == "hit", answer
    expected = {"weak dictionary": "bypass", "lambda, with a hash": "miss", "address": "miss"}
    assert answer["taken"] == {kind: [expected.get(kind, "hit")] for kind in answer["taken"]}
    reasons = answer["reasons"]
    unpickled = [one.partition("Failed to pickle cache key: ")[2] for one in reasons if "Failed" in one]
    assert len(unpickled) == 1, reasons
    assert unpickled[0].startswith("the metadata 'known' of __main__.Own.__tensor_flatten__(): "), reasons
    assert "WeakValueDictionary" in unpickled[0] and "out of what __tensor_flatten__ returns" in unpickled[0]
    [not_saved] = [one for one in reasons if "its trace cannot be saved: " in one]
    assert "lambda" in not_saved and " 0x" not in not_saved and "make it picklable" in not_saved
    differs, again = reasons.index(next(one for one in reasons if "key differs" in one)), len(reasons) - 1
    assert differs < again and reasons[again].startswith("2 graphs traced again in this start: "), reasons
