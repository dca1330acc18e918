"""Run vLLM on a model folder, generate a few tokens, and print JSON: the tokens and the report of each
worker.

Arguments are NAME=VALUE. ``model``: the folder. ``publish``: publish afterwards, under this name.
Others are arguments of ``vllm.LLM``, as JSON."""

import json
import sys

PROMPTS = ["hello there", "what"]
DEFAULTS = {
    "load_format": "dummy",
    "max_model_len": 256,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 1 << 26,
    "seed": 0,
}


def main() -> None:
    from vllm import LLM, SamplingParams

    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    model, name = options.pop("model"), options.pop("publish", None)
    settings = {**DEFAULTS, **{key: json.loads(value) for key, value in options.items()}}
    engine = LLM(model, worker_extension_cls="worker.Worker", **settings)
    outputs = engine.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=8))
    answer = {"tokens": [list(output.outputs[0].token_ids) for output in outputs]}
    if name:
        answer["published"] = engine.collective_rpc("cachesvc_publish", args=(name,))
    answer["workers"] = engine.collective_rpc("say")
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
