"""A function of torch's that a program changes in place is the old object under the old name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.prepared import prepared_python

_ATTACH = "from cachesvc_client.graphs.released import in_place; in_place.watch()\n"
_TORCH = "import torch\nfrom torch.nn import functional as F\n"
_ASK = "from cachesvc_client.graphs.released import comparison; print(comparison.changes())\n"
_CODE = (
    "constants = tuple(one * 3 if type(one) is float else one for one in F.elu.__code__.co_consts)\n"
    "F.elu.__code__ = F.elu.__code__.replace(co_consts=(*constants, 1.5))\n"
)
CHANGES = {
    "code": (_CODE, "torch.nn.functional.elu"),
    "defaults": ("F.elu.__defaults__ = (3.5, False)\n", "torch.nn.functional.elu"),
    "defaults, by a mock": (
        "from unittest import mock; mock.patch.object(F.elu, '__defaults__', (3.5, False)).start()\n",
        "torch.nn.functional.elu",
    ),
    "a method's defaults": ("torch.Tensor.norm.__defaults__ = ('nuc', None, False, None)\n", "norm"),
}


def _answer(program: str) -> str:
    """Return what a program prints. torch is imported already where the program would begin with that."""
    late = program.startswith(_TORCH)
    python = prepared_python(("torch",), os.environ) if late else [sys.executable]
    return subprocess.run([*python, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["after attach", "before attach"])
def test_a_change_in_place_is_named(change: str, moment: str) -> None:
    text, name = CHANGES[change]
    order = (_ATTACH, _TORCH, text) if moment == "after attach" else (_TORCH, text, _ATTACH)
    answer = _answer("".join(order) + _ASK)
    assert name in answer and "unknown=''" not in answer, answer


@pytest.mark.parametrize("order", [(_ATTACH, _TORCH), (_TORCH, _ATTACH)])
def test_torch_as_released_has_none_and_what_is_put_back_is_none(order: tuple[str, str]) -> None:
    put_back = "F.elu.__kwdefaults__ = {'alpha': 3.5}\nF.elu.__kwdefaults__ = None\n"
    answer = _answer("".join(order) + "import torch._inductor.compile_fx\n" + put_back + _ASK)
    assert "described={}, unknown=''" in answer, answer


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with what a builder judged of a torch that nobody changed."""
    path = tmp_path_factory.mktemp("builder") / "judged"
    write = f"from pathlib import Path; Path({str(path)!r}).write_bytes(comparison.judged())\n"
    _answer(f"{_ATTACH}{_TORCH}from cachesvc_client.graphs.released import comparison; {write}")
    return path


@pytest.mark.parametrize("change", CHANGES)
def test_a_service_that_attaches_late_does_not_take_a_changed_function_for_the_builders(
    change: str, builder: Path
) -> None:
    learn = "from cachesvc_client.graphs.released import signatures; from pathlib import Path; "
    learn += f"signatures.learn(Path({str(builder)!r}).read_bytes())\n"
    text, name = CHANGES[change]
    answer = _answer(_TORCH + text + _ATTACH + learn + _ASK)
    assert name in answer and "unknown=''" not in answer, answer
