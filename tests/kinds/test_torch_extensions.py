"""Extensions of ``torch.utils.cpp_extension``: what travels, what a key holds, and what a build read."""

from __future__ import annotations

from pathlib import Path

from cachesvc_client.kinds.kind import KindState
from cachesvc_client.kinds.torch_extensions.kind import KIND, TorchExtensionsState

from .conformance import Example, KindConformance

KEY = "cachesvc/" + "0" * 16 + "/" + "a1" * 32


class TestConformance(KindConformance):
    kind = KIND
    examples = (
        Example(f"{KEY}/fused_ops.so", b"\x7fELF" + bytes(range(256)), "ours"),
        Example(f"{KEY}/depends.json", b'{"compilers":{},"files":[],"format":1}', "ours", last=True),
    )
    others = (
        *("fused_ops/fused_ops.so", "fused_ops/build.ninja", "fused_ops/.ninja_deps", "fused_ops/main.o"),
        *("cachesvc/cachesvc.so", f"{KEY}/lock", f"{KEY}/../depends.json", f"{KEY}/.so"),
        *(f"../{KEY}/fused_ops.so", f"/{KEY}/fused_ops.so", f"{KEY}/sub/fused_ops.so"),
    )

    def use(self, state: KindState, root: Path) -> set[str]:
        assert isinstance(state, TorchExtensionsState)
        state._extensions.loaded[f"{KEY}/fused_ops.so"] = root / KEY / "fused_ops.so"
        return {f"{KEY}/fused_ops.so", f"{KEY}/depends.json"}

    def allowed(self, state: KindState) -> list[Path]:
        assert isinstance(state, TorchExtensionsState)
        return [folder for folders in state._extensions._accepted.values() for folder in folders]
