"""What a process of `warm` calls its files, and what it captures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cachesvc.warm.plan import plan
from cachesvc.warm.results import PhaseResult
from cachesvc.warm.spec import parse_spec
from cachesvc.warm.worker import Order, _named, _with_capture
from cachesvc_client.bundle.pack import SourceFile

KEY = "7P335DUZQWC3FD5RRF4O6ZXEG2U3NY34Z46BPF4ZH7D226SIEGZA"


def test_a_file_belongs_to_the_innermost_kind(tmp_path: Path) -> None:
    roots = {"inductor": tmp_path / "i", "triton": tmp_path / "i/triton/0"}
    paths = [tmp_path / "i/aa/a", tmp_path / f"i/triton/0/{KEY}/k.cubin", tmp_path / "elsewhere"]
    assert _named(roots, paths) == {"inductor/aa/a", f"triton/{KEY}/k.cubin"}


def test_what_an_entry_holds_is_not_captured_beside_it(tmp_path: Path) -> None:
    class Session:
        def capture(self, whole: bool) -> list[SourceFile]:
            assert whole
            paths = (f"{KEY}/k.cubin", f"{KEY}/k.ptx")
            return [SourceFile("triton", path, b"bytes", 0o644) for path in paths]

    (job,) = plan(parse_spec('name = "a/b"\n[[target]]\nid = "x"\nfactory = "m:f"\n', tmp_path / "w.toml"))
    session: Any = Session()
    order = Order("replay", job, stage=str(tmp_path / "stage"))
    made = _with_capture(order, session, PhaseResult("replay", emitted=(f"triton/{KEY}/k.ptx",)))
    assert [file.name for file in made.captured] == [f"triton/{KEY}/k.cubin"]
    assert [path.name for path in (tmp_path / "stage").rglob("*.*")] == ["k.cubin"]
