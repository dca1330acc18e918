"""Test which variables the fresh processes of `warm` inherit."""

from __future__ import annotations

from cachesvc.warm.spec.variables import choose_variables


def test_what_switches_a_kind_on_passes_and_no_other_variable_of_cachesvc() -> None:
    base = {"CACHESVC_KINDS": "flashinfer", "CACHESVC_TOKEN": "x", "CACHESVC_MODE": "readwrite"}
    assert choose_variables(base) == {"CACHESVC_KINDS": "flashinfer"}


def test_variables_that_decide_flashinfers_modules_pass_and_its_folder_does_not() -> None:
    base = {"FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": "/home/builder"}
    assert choose_variables(base) == {"FLASHINFER_CUDA_ARCH_LIST": "9.0a"}


def test_no_login_passes_by_another_name_or_inside_of_a_value() -> None:
    secrets = {
        **dict.fromkeys(("HF_PAT", "HF_LOGIN_BLOB", "NVIDIA_NGC", "NVIDIA_API_KEY", "HUGGINGFACE_X"), "x"),
        **dict.fromkeys(("TORCH_PAT", "TORCH_HUB_PASS", "CUDA_PWD1", "NCCL_JWT", "TRITONTOKEN", "MY"), "x"),
        **dict.fromkeys(("TRITON_APIKEY", "PYTHON_PASSWORDS", "torch_session", "GITHUB_ENV", "CI"), "x"),
        "https_proxy": "http://user:pa/ss@proxy:3128",
        "HTTP_PROXY": "user:password@proxy:3128",
        "ALL_PROXY": "socks5://token@proxy",
        "HF_ENDPOINT": "https://user:password@hub.example",
        "TORCH_MIRROR": "https://token@mirror.example/x",
        "TORCH_HUB": "ghp_" + 36 * "a",
        "CUDA_SOMETHING": "hf_" + 30 * "a",
    }
    assert choose_variables(secrets) == {}
    assert choose_variables(secrets, pass_env=["HF_PAT", "https_proxy"]).keys() == {"HF_PAT", "https_proxy"}


def test_what_a_build_needs_still_passes() -> None:
    base = {
        "https_proxy": "http://proxy:3128",
        "no_proxy": "localhost,.example",
        "LC_ALL": "de_DE@euro",
        "HF_HOME": "/models/hf",
        "HF_ENDPOINT": "https://hub.example",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "TORCH_CUDA_ARCH_LIST": "9.0",
        "PYTHONPATH": "/srv/app",
        "CUDA_HOME": "/usr/local/cuda",
        "SSL_CERT_FILE": "/etc/ssl/own.pem",
        "OMP_NUM_THREADS": "4",
    }
    assert choose_variables(base) == base
