"""Print, as JSON, the names that vLLM and cachesvc give an artifact under many configurations: each
differs from the first one in one thing.

``differences.py MODEL``. No engine is started: vLLM makes its configuration and its own hash of it, and
cachesvc the identity beside that hash. ``same``: names under differences that change no graph."""

import json
import os
import sys
from pathlib import Path

import torch
from vllm.engine.arg_utils import EngineArgs

BASE = {
    "load_format": "dummy",
    "max_model_len": 256,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 1 << 26,
    "seed": 0,
}
ARGUMENTS = {
    "dtype float32": {"dtype": "float32"},
    "dtype float16": {"dtype": "float16"},
    "max_model_len": {"max_model_len": 128},
    "max_num_batched_tokens": {"max_num_batched_tokens": 512},
    "max_num_seqs": {"max_num_seqs": 8},
    "tensor parallel": {"tensor_parallel_size": 2},
    "pipeline parallel": {"pipeline_parallel_size": 2},
    "block size": {"block_size": 64},
    "kv cache dtype": {"kv_cache_dtype": "fp8"},
    "lora": {"enable_lora": True, "max_lora_rank": 8},
    "lora rank": {"enable_lora": True, "max_lora_rank": 16},
    "lora count": {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2},
    "lora dtype": {"enable_lora": True, "max_lora_rank": 8, "lora_dtype": torch.float32},
    "lora cpu": {"enable_lora": True, "max_lora_rank": 8, "max_cpu_loras": 3},
    "speculative": {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    },
    "speculative tokens": {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    },
    "speculative window": {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 4}
    },
    "additional": {"additional_config": {"a": 1}},
    "additional value": {"additional_config": {"a": 2}},
    "mode none": {"compilation_config": {"mode": 0}},
    "mode stock": {"compilation_config": {"mode": 1}},
    "backend": {"compilation_config": {"backend": "eager"}},
    "custom operators": {"compilation_config": {"custom_ops": ["+rms_norm"]}},
    "no custom operators": {"compilation_config": {"custom_ops": ["-silu_and_mul"]}},
    "compile sizes": {"compilation_config": {"compile_sizes": [4]}},
    "inductor option": {"compilation_config": {"inductor_compile_config": {"max_autotune": True}}},
    "32-bit indexing": {"compilation_config": {"dynamic_shapes_config": {"assume_32_bit_indexing": True}}},
    "dynamic shapes": {"compilation_config": {"dynamic_shapes_config": {"type": "unbacked"}}},
    "guards": {"compilation_config": {"dynamic_shapes_config": {"evaluate_guards": True}}},
    "splitting": {"compilation_config": {"splitting_ops": ["vllm::unified_attention_with_output"]}},
    "overrides": {"hf_overrides": {"rope_theta": 20000.0}},
    "override of heads": {"hf_overrides": {"num_key_value_heads": 4}},
    "override of layers": {"hf_overrides": {"num_hidden_layers": 3}},
    "override of sizes": {"hf_overrides": {"intermediate_size": 1024}},
    "override of the activation": {"hf_overrides": {"hidden_act": "gelu"}},
    "override of epsilon": {"hf_overrides": {"rms_norm_eps": 1e-6}},
    "tied weights": {"hf_overrides": {"tie_word_embeddings": True}},
    "runner": {"runner": "pooling", "convert": "embed"},
}
VARIABLES = {
    "VLLM_USE_AOT_COMPILE": "0",
    "VLLM_USE_MEGA_AOT_ARTIFACT": "0",
    "VLLM_USE_BYTECODE_HOOK": "0",
    "VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE": "0",
    "VLLM_ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING": "0",
    "VLLM_USE_TRITON_AWQ": "1",
    "VLLM_CPU_SGL_KERNEL": "1",
    "VLLM_PP_LAYER_PARTITION": "1,1",
    "VLLM_FLOAT32_MATMUL_PRECISION": "high",
    "VLLM_DISABLED_KERNELS": "x",
    "VLLM_MOE_DP_CHUNK_SIZE": "128",
    "VLLM_OF_A_PLUGIN": "1",
    "VLLM_CPU_SIM_MULTI_NUMA": "1",
}
SAME = {
    "VLLM_DIST_IDENT": "another",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CACHE_ROOT": "/elsewhere",
    "HOME": "/other",
}


def name(model, arguments):
    """Return the place of the artifact, as the hook of the kind makes it."""
    from vllm.compilation.caching import aot_compile_hash_factors

    from cachesvc_client.kinds.vllm.identity import identity

    config = EngineArgs(model=model, **{**BASE, **arguments}).create_engine_config()
    rank = config.parallel_config.rank
    return f"{identity(config)}/{aot_compile_hash_factors(config)}/{rank}"


def with_variable(model, variable, value):
    """Return the name under a variable, which is taken back then."""
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        return name(model, {})
    finally:
        os.environ.pop(variable)
        if before is not None:
            os.environ[variable] = before


def changed_model(model, change):
    """Return a copy of the model in another folder, with another value in its configuration."""
    folder = Path(f"{model}-{change[0]}")
    folder.mkdir(exist_ok=True)
    for file in Path(model).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, change[0]: change[1]}))
    return str(folder)


def main():
    model = sys.argv[1]
    names, refused = {"base": name(model, {})}, {}
    for label, arguments in ARGUMENTS.items():
        try:
            names[label] = name(model, arguments)
        except Exception as error:  # noqa: BLE001 - an engine of that configuration does not start either
            refused[label] = f"{type(error).__name__}: {str(error)[:200]}"
    for variable, value in VARIABLES.items():
        try:
            names[variable] = with_variable(model, variable, value)
        except Exception as error:  # noqa: BLE001 - as above
            refused[variable] = f"{type(error).__name__}: {str(error)[:200]}"
    for change in (("vocab_size", 1024), ("hidden_size", 512), ("max_position_embeddings", 1024)):
        names[f"model {change[0]}"] = name(changed_model(model, change), {})
    ngram = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}}
    names["n-grams"] = name(model, ngram)
    extended = name(model, {**ngram, "worker_extension_cls": "any.Extension"})
    assert extended == names["n-grams"], "an extension of the worker changes no graph"
    same = {variable: with_variable(model, variable, value) for variable, value in SAME.items()}
    same["again"] = name(model, {})
    same["prefill in one piece"] = name(model, {"enable_chunked_prefill": False})
    same["another cache size"] = name(model, {"kv_cache_memory_bytes": 1 << 27})
    print(json.dumps({"names": names, "same": same, "refused": refused}))


main()
