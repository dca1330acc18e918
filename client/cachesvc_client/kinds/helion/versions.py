"""What the kind knows of Helion's releases, in one place.

Read in the wheels of 1.4.0 and 1.5.1. What a hook finds decides, and not the number of the release. Releases
from 1.5 on need a torch after 2.11 (``IntelGPUError`` in its Triton layer).
"""

from __future__ import annotations

BACKENDS = ("triton", "pallas")
"""Backends whose configurations are kept. Pallas only in its interpreter, on a CPU."""

THOROUGH = ("autotune_max_generations", "autotune_budget_seconds")
"""Settings that end a search early; ``None`` if nothing does."""
EFFORTS = ("none", "quick", "full")
"""Values of the setting ``autotune_effort``, the least thorough first."""

IDLE = frozenset(
    {
        *("autotune_log_level", "autotune_log", "autotune_log_details", "autotune_progress_bar"),
        *("autotune_log_search_space", "autotune_log_search_space_verbose"),
        *("autotune_log_search_space_path", "print_output_code", "print_repro", "ignore_warnings"),
        *("autotune_compile_timeout", "autotune_benchmark_timeout", "autotune_adaptive_timeout"),
        *("autotune_benchmark_subprocess", "autotune_precompile", "autotune_precompile_jobs"),
        *("autotune_random_seed", "autotune_cache", "force_autotune", "autotune_effort", *THOROUGH),
        *("autotune_best_available_max_configs", "autotune_best_available_max_cache_scan"),
        *("autotune_initial_population_strategy", "autotune_seed_configs"),
        *("disable_autotuner_heuristics", "autotune_rebenchmark_threshold"),
        *("autotune_suspicious_rebenchmark_ratio", "autotune_handoff", "autotune_handoff_budget_seconds"),
    }
)
"""Settings of a kernel that only say what is printed, how long a search waits, or where it begins. Every
other setting has to be equal. `made` compares those of `THOROUGH` and ``autotune_effort`` by their order."""
