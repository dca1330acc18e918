"""Test which level of x86-64 a process takes of those that its image names, on recorded CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from cachesvc_client.config.settings import Config
from cachesvc_client.environment import cpu, cxx, level_choice, releases
from cachesvc_client.environment.detect import detect
from cachesvc_client.environment.level_choice import choose_level, parse_levels, set_level
from cachesvc_client.environment.march import LEVELS, RELEASES, level_of, variables
from cachesvc_client.wire.errors import InvalidRequest
from tests.environment.test_cpu_flags import record
from tests.releases import TORCH

ALL = ",".join(LEVELS)
Machine = Callable[..., None]
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="chooses a level of x86-64")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a function that puts this process onto a recorded CPU, with a torch and a compiler."""

    def put(name: str, torch: str = "2.13.0+cpu", compiler: str | None = None, lacks: str = "") -> None:
        cpuinfo = record(name)
        left = [flag for flag in cpuinfo["flags"].split() if flag not in lacks.split()]
        monkeypatch.setattr(cpu, "read_cpuinfo", lambda: {**cpuinfo, "flags": " ".join(left)})
        monkeypatch.setattr(releases, "torch", lambda: (torch, None))
        monkeypatch.setattr(cxx, "identity", lambda _: compiler)
        monkeypatch.delitem(sys.modules, level_choice.READER, raising=False)

    return put


@pytest.mark.parametrize(
    ("name", "named", "lacks", "level"),
    [
        ("zen5-vm", ALL, "", "x86-64-v4"),
        ("sapphire-rapids", "x86-64-v4 x86-64-v3", "", "x86-64-v4"),
        ("zen5-vm", "x86-64-v2, x86-64-v3", "", "x86-64-v3"),
        ("haswell", ALL, "", "x86-64-v3"),
        ("haswell", ALL, "avx2 avx bmi2", "x86-64-v2"),
    ],
)
def test_a_process_takes_the_best_level_that_its_cpu_has(
    machine: Machine, name: str, named: str, lacks: str, level: str
) -> None:
    machine(name, lacks=lacks)
    environ = {"CACHESVC_MARCH": named}
    assert level_of(detect(environ)) == level, "what commands such as `cachesvc environment` say"
    assert set_level(environ) == "" and environ == {"CACHESVC_MARCH": named, **variables(level)}
    assert set_level(environ) == "", "a child process has what its parent took"


@pytest.mark.parametrize(
    ("put", "line"),
    [
        ({"lacks": "bmi2"}, "x86-64-v3: this CPU lacks bmi2"),
        ({"torch": "2.12.1"}, "x86-64-v3: torch 2.12.1 compiles for the CPU that it runs on alone"),
        ({"torch": "2.99.0"}, "x86-64-v3: torch 2.99.0 compiles for the CPU that it runs on alone"),
        ({"compiler": "g++ 10.2.1"}, "x86-64-v3: g++ 10.2.1 knows no levels, g++ 11 does"),
    ],
)
def test_where_no_level_fits_one_line_says_why_and_nothing_is_set(
    machine: Machine, put: dict[str, str], line: str
) -> None:
    machine("haswell", **put)
    environ = {"CACHESVC_MARCH": "x86-64-v4,x86-64-v3"}
    assert set_level(environ) == f"CACHESVC_MARCH=x86-64-v4,x86-64-v3 does nothing: {line}"
    assert environ == {"CACHESVC_MARCH": "x86-64-v4,x86-64-v3"} and level_of(detect(environ)) == ""


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_CPP_MARCH", "ATEN_CPU_CAPABILITY"])
def test_what_the_user_set_holds(machine: Machine, name: str) -> None:
    machine("haswell")
    environ = {"CACHESVC_MARCH": "x86-64-v3", name: "default"}
    assert set_level(environ) == f"CACHESVC_MARCH does nothing, since {name}=default holds: unset one of them"
    assert environ == {"CACHESVC_MARCH": "x86-64-v3", name: "default"}


def test_after_the_compiler_is_loaded_nothing_is_set(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("haswell")
    monkeypatch.setitem(sys.modules, level_choice.READER, os)
    environ = {"CACHESVC_MARCH": "x86-64-v3"}
    assert "torch's compiler is loaded: attach before it" in set_level(environ) and len(environ) == 1
    assert level_of(detect(environ)) == ""


@pytest.mark.parametrize("text", ["best", "x86-64-v5", "x86-64-v3,native", ","])
def test_a_level_that_is_none_is_the_configurations_error(machine: Machine, text: str) -> None:
    machine("haswell")
    with pytest.raises(
        InvalidRequest, match=r"CACHESVC_MARCH: '.*': allowed: x86-64-v2, x86-64-v3, x86-64-v4"
    ):
        Config.read({"CACHESVC_MARCH": text})
    assert choose_level({"CACHESVC_MARCH": text}) == ({}, "")
    assert parse_levels(ALL) == Config.read({"CACHESVC_MARCH": ALL}).march == tuple(reversed(LEVELS))


@pytest.mark.skipif(f"{TORCH[0]}.{TORCH[1]}" not in RELEASES, reason="this torch has no levels")
def test_importing_torch_loads_no_reader_of_the_variable() -> None:
    """So a program that imports torch and attaches then is in time."""
    program = f"import sys, torch; sys.exit({level_choice.READER!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
