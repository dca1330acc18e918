"""What vLLM's releases do differently in their cache folder, in one place.

Read in the wheels of 0.26.0, which was run on a GPU, and of 0.32.0, on which `tests/engines` runs on a CPU.
What a hook finds decides, and not the number of the release.
"""

from __future__ import annotations

LEFT_OUT = (
    "lora_config",
    "speculative_config",
    "model_config.multimodal_config",
    "model_config.hf_overrides",
    "additional_config",
)
"""Parts of ``VllmConfig`` that vLLM's hash leaves out, in whole or in part (0.32): of LoRA it has eight
fields, of speculative decoding the method and the draft model, and multimodal settings only where an encoder
is compiled."""

OF_HOST = frozenset(
    {
        *("instance_id", "local_cache_dir", "cache_dir", "traced_files", "debug_dump_path"),
        *("data_parallel_master_ip", "data_parallel_master_port", "master_addr", "master_port", "node_rank"),
        *(
            "rank",
            "data_parallel_rank",
            "data_parallel_rank_local",
            "data_parallel_index",
            "_api_process_rank",
        ),
        *("data_parallel_rpc_port", "_data_parallel_master_port_list", "_coord_store_port", "world_size"),
        *("worker_extension_cls", "_api_process_count", "assigned_physical_gpu_ids"),
        *("numa_bind", "numa_bind_nodes", "numa_bind_cpus"),
        *("ray_workers_use_nsight", "placement_group", "compilation_time", "static_forward_context"),
    }
)
"""Fields, in those parts, of one process or one host: they change no graph. The configuration of speculative
decoding by n-grams contains that of the parallel engine, of which vLLM's own hash omits them too."""

VARIABLES_OF_PROCESS = frozenset({"VLLM_DIST_IDENT"})
"""Variables that vLLM sets itself, to another value in each engine."""

OUT_OF_HASH = frozenset(
    {"VLLM_CONFIG_ROOT", "VLLM_XLA_CACHE_PATH", "VLLM_API_KEY", "VLLM_ELASTIC_EP_SCALE_UP_LAUNCH"}
)
"""Variables that decide no graph and that 0.32 leaves out of its hash. Releases such as 0.26 hash them: two
folders below the home of a user, and a secret, so that another user finds no artifact."""

GROUPS = ("vllm.general_plugins", "vllm.platform_plugins")
"""Groups of entry points whose packages change vLLM."""

ASK_FOR_SOURCES = (
    "vllm.compilation.passes.inductor_pass._hash_source_cached",
    "vllm.ir.op.IrOpImpl.uuid",
    "vllm.ir.util.hash_source",
)
"""Functions by which vLLM hashes the sources of its passes and of its operators' implementations."""
