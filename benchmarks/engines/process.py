"""Start vLLM on a model, let it answer, and write the seconds since exec, the tokens and the worker's counts:
``process.py ANSWER MODEL ARGUMENTS``, where ARGUMENTS is a JSON object of engine arguments."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

PROMPTS = (tuple(range(1, 17)), (1, 2))


def main() -> None:
    began = float(os.environ["BENCHMARK_STARTED"])
    seconds: dict[str, float] = {}

    def done(step: str) -> None:
        seconds[step] = time.monotonic() - began

    done("interpreter")
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    done("import")
    answer, model, arguments = sys.argv[1:]
    settings = EngineArgs(
        model=model, worker_extension_cls="benchmarks.engines.worker.Worker", **json.loads(arguments)
    )
    engine = LLMEngine.from_engine_args(settings, usage_context=UsageContext.OPENAI_API_SERVER)
    done("engine")
    answered(engine, PROMPTS[0], 1)
    done("first token")
    tokens = [answered(engine, prompt, 8) for prompt in PROMPTS]
    done("tokens")
    workers = engine.collective_rpc("say_work")
    Path(answer).write_text(json.dumps({"seconds": seconds, "tokens": tokens, **whole(workers)}))
    engine.engine_core.shutdown()


def whole(workers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the work of the engine: the sums of its workers' counts and the longest compile; of an engine
    with several ranks also what each worker said."""
    counts = {
        name: sum(worker["observed"][name] for worker in workers)
        for name, value in workers[0]["observed"].items()
        if isinstance(value, int)
    }
    longest = max(worker["compile_seconds"] or 0.0 for worker in workers)
    first = {**workers[0], "observed": {**workers[0]["observed"], **counts}, "compile_seconds": longest}
    return {**first, "workers": workers} if len(workers) > 1 else first


def answered(engine: Any, prompt: tuple[int, ...], count: int) -> list[Any]:
    """Return ``count`` tokens, generated greedily; of an embedding model as many numbers."""
    from vllm import PoolingParams, SamplingParams

    options: Any = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
    if "embed" in engine.get_supported_tasks():
        options = PoolingParams(task="embed")
    engine.add_request("0", {"prompt_token_ids": list(prompt)}, options)
    outputs: list[Any] = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    last = outputs[-1].outputs
    return list(last[0].token_ids) if isinstance(last, list) else last.data.float()[:count].tolist()


if __name__ == "__main__":
    main()
