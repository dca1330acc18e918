"""A platform for tests: the CPU with vLLM's own piecewise compile, as its GPU platforms have it.

vLLM's CPU platform replaces `CompilationMode.VLLM_COMPILE` by a plain compile. This one keeps it. vLLM finds
it by an entry point, which the test writes."""

import sys


def register():
    """Return the name of the platform, as vLLM asks each plugin for."""
    return "piecewise.PiecewiseCpu"


def __getattr__(name):
    if name not in ("PiecewiseCpu", "Passes"):
        raise AttributeError(name)
    vars(sys.modules[__name__])[name] = _platform() if name == "PiecewiseCpu" else _passes()
    return vars(sys.modules[__name__])[name]


def _platform():
    from vllm.platforms.cpu import CpuPlatform

    class PiecewiseCpu(CpuPlatform):
        """The CPU, where vLLM compiles piecewise."""

        @classmethod
        def check_and_update_config(cls, vllm_config):
            """Keep the mode that was asked for."""
            from vllm.config import CompilationMode, CUDAGraphMode

            config = vllm_config.compilation_config
            mode = config.mode
            super().check_and_update_config(vllm_config)
            if mode == CompilationMode.VLLM_COMPILE:
                config.mode, config.backend, config.cudagraph_mode = mode, "inductor", CUDAGraphMode.NONE
                config.compile_sizes = config.compile_sizes or []

        @classmethod
        def get_pass_manager_cls(cls):
            """Return the name of the passes."""
            return "piecewise.Passes"

    return PiecewiseCpu


def _passes():
    from vllm.compilation.passes.pass_manager import PostGradPassManager

    class Passes(PostGradPassManager):
        """None of vLLM's: they name operators that only its CUDA build has."""

        def configure(self, config):
            """Switch every pass off."""
            passes = config.compilation_config.pass_config
            for field in vars(passes):
                if field.startswith(("fuse_", "enable_")):
                    setattr(passes, field, False)
            super().configure(config)

        def __call__(self, graph):
            """Leave the graph as it is."""

    return Passes
