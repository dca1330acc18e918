"""Test which variables the fresh processes of `warm` inherit."""

from __future__ import annotations

from cachesvc.warm.variables import choose_variables


def test_what_switches_a_kind_on_passes_and_no_other_variable_of_cachesvc() -> None:
    base = {"CACHESVC_EXPERIMENTAL": "flashinfer", "CACHESVC_TOKEN": "x", "CACHESVC_MODE": "readwrite"}
    assert choose_variables(base) == {"CACHESVC_EXPERIMENTAL": "flashinfer"}


def test_variables_that_decide_flashinfers_modules_pass_and_its_folder_does_not() -> None:
    base = {"FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": "/home/builder"}
    assert choose_variables(base) == {"FLASHINFER_CUDA_ARCH_LIST": "9.0a"}
