"""The files of the kind `vllm`.

The folder lies inside of Inductor's, and cachesvc alone writes it. vLLM's own folder
(``VLLM_CACHE_ROOT``) stays as it is: nothing is installed there, and vLLM is given the path of a file that
was verified. The first folder of an artifact is named by what vLLM's keys leave out (`identity`), and the
rest of the path is vLLM's (read in 0.26.0 and 0.32.0)::

    <identity>/torch_aot_compile/<64 hex>/rank_<r>_<dp>/model   pickle: the traced graph, and, where vLLM
                                                                compiles piecewise, its code
    modelinfos/<32 hex>/<digest>/<class>.json                   JSON: what a model's class can do; named by
                                                                vLLM's version and plugins, and by the
                                                                class's source (`model_infos`)

What vLLM keeps without AOT compile, in ``<10 hex>/rank_<r>_<dp>/<prefix>``, does not travel: its
``cache_key_factors.json`` has the values of variables, and graphs of Inductor do the same.
"""

from __future__ import annotations

from ..rules import FileRule, KindRules

RANK = r"rank_[0-9]{1,5}_[0-9]{1,5}(_dev[0-9]{1,4})?"
"""The folder of one rank; some versions add the number of the device."""
MODEL_INFOS = "modelinfos"
"""The folder of descriptions of model classes, in vLLM's folder and in the kind's."""
RULES = KindRules(
    "vllm",
    (
        FileRule(
            rf"[0-9a-f]{{32}}/torch_aot_compile/[0-9a-f]{{64}}/{RANK}/model",
            last=True,
            demanded_by="VLLM_FORCE_AOT_LOAD",
        ),
        FileRule(rf"{MODEL_INFOS}/[0-9a-f]{{32}}/[0-9a-f]{{32,64}}/[A-Za-z0-9_-]{{1,200}}\.json"),
    ),
)


def is_artifact(path: str) -> bool:
    """Return whether a file of the kind, by its path in the kind's folder, holds compiled graphs."""
    return not path.startswith(MODEL_INFOS + "/")


def inside_of_torch_compile_cache(path: str) -> str:
    """Return the part of a path of vLLM's below its ``torch_compile_cache``; empty for any other path."""
    _, found, rest = path.rpartition("/torch_compile_cache/")
    return rest if found else ""
