"""Read the warm spec: a TOML file -> typed, validated records. What the keys mean: ``docs/warm.md``.

    name = "team/bert"                    # namespace/name[:tag], under which entries are published

    [defaults]                            # any key of a target but those that say what it is
    dtypes = ["float32"]

    [[target]]
    id = "bert"
    factory = "models:bert"               # module:function -> a module or callable, or (it, inputs)
    args = {layers = 6}                   # keyword arguments of the factory
    dtypes = ["float32", "bfloat16"]      # absent: parameters stay as the factory made them
    modes = ["default", "max-autotune"]   # each dtype with each mode is an entry of its own
    [target.inputs.short]                 # named input sets; keyword arguments of the module
    input_ids = {shape = [1, 128], dtype = "int64", high = 1000}
    "*" = [{shape = [1, 8]}]              # positional arguments, if there are any
    [target.inputs]
    long = "models:long_inputs"           # or a function: a dict is keywords, a tuple positions

    [[target]]
    id = "train"
    script = "train.py"                   # a whole program instead; it must end with status 0
    args = ["--steps", "2"]
    files = ["config.yaml"]               # what else decides what it compiles
    nproc = 2                             # the number of ranks, which torchrun starts

    [[target]]
    id = "llm"
    vllm = "/models/llama"                # an engine instead: the folder of its model, with a config.json
    args = {max_model_len = 4096}         # engine arguments

Every mistake is a ``SpecError`` of one line: file, line, key, and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib

from cachesvc_client.environment import march
from cachesvc_client.wire.errors import SpecError
from cachesvc_client.wire.names import Name

from .. import kinds_used
from .inputs import MODEL_DTYPES, InputSet, read_input_sets
from .toml_lines import KeyPath, lines_of
from .toml_table import CALL, ID, MADE_BY, Source, Table, toml_value

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
GRADS = ("no_grad", "inference_mode", "grad")
TARGET_KINDS = ("inference", "training")
AUTOCAST_DTYPES = ("bfloat16", "float16")
TRACING = ("auto", "never", "always")
OWN_VARIABLES = (*kinds_used.CACHE_VARIABLES, "HOME", "TMPDIR", "PYTHONPATH")
"""Names of variables that `warm` sets for each phase: a fresh process must find nothing of the builder's."""
MAX_SPEC_BYTES = 1 << 20
MAX_RANKS = 64
MAX_SECONDS = 7 * 86400
"""Seconds that one phase may take, at most."""
MAX_RUNS = 10_000
MODEL_CONFIG = "config.json"
"""Name of the file that makes a folder the folder of an engine's model."""

DECIDED_BY_MODEL = (
    "inputs",
    "dtypes",
    "modes",
    "options",
    "dynamic",
    "fullgraph",
    "kind",
    "grad",
    "autocast",
)
"""Keys of a factory alone: a script and an engine decide this themselves."""
NOT_OF_ENGINES = (*DECIDED_BY_MODEL, "nproc", "device", "tracing", "tolerance", "runs", "seed")
_ENGINE_DECIDES: dict[str, Any] = {
    "dtypes": (),
    "modes": ("default",),
    "options": {},
    "dynamic": None,
    "fullgraph": False,
    "kind": "inference",
    "grad": "no_grad",
    "autocast": "",
    "device": "auto",
    "tracing": "always",
    "tolerance": None,
}
"""What an engine has in the place of the defaults of the spec, which are for models."""
RANKS = "tensor_parallel_size"
"""Engine argument with the number of an engine's ranks."""
SIZES = (
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
    "decode_context_parallel_size",
)
"""Engine arguments that make ranks of another sort, which nobody has proven."""
OWN_ARGUMENTS = {
    "model": "the key vllm names the model",
    "worker_extension_cls": "warm itself extends the worker",
}
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,2})?")


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """Describes one ``[[target]]``.

    One of ``factory``, ``script`` and ``vllm`` is not empty. ``vllm``: the folder of an engine's model, of
    which ``args`` are the engine arguments. ``dtypes``: empty if parameters stay as the factory made them.
    ``dynamic``: ``None`` leaves the choice to torch. ``tracing``: whether services of the entry trace:
    *always*, *never* (the target fails where that cannot be proven), or *auto* (they do not where that can be
    proven). ``tolerance``: ``rtol`` and ``atol``; ``None`` for the dtype's default. ``march``: the levels of
    x86-64 that code for the CPU is built for, each an entry; empty for the CPU of the build.
    ``timeout``: seconds of one phase. ``nproc``: ranks of a script. ``runs``: number of calls of which the
    steady time is the median. ``cwd``, ``script``, ``vllm`` and ``files`` are absolute.
    """

    id: str
    factory: str = ""
    script: str = ""
    vllm: str = ""
    nproc: int = 1
    args: dict[str, Any] | tuple[str, ...] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    inputs: dict[str, InputSet] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("default",)
    options: dict[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    fullgraph: bool = False
    kind: str = "inference"
    grad: str = "no_grad"
    autocast: str = ""
    device: str = "auto"
    tracing: str = "auto"
    march: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    cwd: str = ""
    paths: tuple[str, ...] = ()
    tolerance: dict[str, float] | None = None
    timeout: float = 3600.0
    runs: int = 10
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Spec:
    """Holds a whole spec, in the order of the file. ``path`` is absolute."""

    path: Path
    name: Name
    targets: tuple[TargetSpec, ...]


def load_spec(path: Path) -> Spec:
    """Read and validate a spec; reads no other file, but checks that those exist that the spec names.

    Raises ``SpecError``: one line with file, line, key, and what is allowed.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror or error}", "give the path of a warm spec (TOML)") from None
    if len(data) > MAX_SPEC_BYTES:
        raise SpecError(f"{path}: {len(data)} bytes; a warm spec has at most {MAX_SPEC_BYTES}")
    try:
        return parse_spec(data.decode(), path.absolute())
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: byte {error.start} is not UTF-8", "TOML files are UTF-8") from None


def parse_spec(text: str, path: Path) -> Spec:
    """Read and validate the text of a spec, as `load_spec` does.

    ``path`` names the spec in messages; relative paths start from its folder.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: not TOML: {error}") from None
    root = Table(document, (), Source(path, lines_of(text)), "the spec")
    name = root.name("name")
    defaults = root.table("defaults")
    tables = root.tables("target")
    root.finish()
    if defaults:
        _target_options(defaults)
        defaults.finish("what a target may have, without id, factory, script, vllm, args, inputs and files: ")
    targets = tuple(_target(table, defaults) for table in tables)
    for index, target in enumerate(targets):
        if target.id in [other.id for other in targets[:index]]:
            tables[index].fail(
                "id", f"{target.id!r} is the id of an earlier target", "give each target its own"
            )
    return Spec(path, name, targets)


def _target(table: Table, defaults: Table | None) -> TargetSpec:
    ident = table.text("id")
    if not ID.fullmatch(ident):
        table.fail("id", f"{ident!r}" if ident else "missing", "letters, digits and . _ - inside; at most 64")
    table.label = f"target {ident!r}"
    table.defaults = defaults
    factory, script, vllm = table.call("factory"), table.text("script"), table.text("vllm")
    _check_only_one(table, {"factory": factory, "script": script, "vllm": vllm})
    if vllm:
        options = _target_options(table) | _ENGINE_DECIDES | _engine(table, vllm)
        if options["march"]:
            table.fail("march", "an engine builds for the CPU that it runs on", "drop the key")
    else:
        options = _script(table, script) if script else _factory(table, factory)
        options |= _target_options(table)
    table.finish()
    return TargetSpec(id=ident, **options)


def _check_only_one(table: Table, values: dict[str, str]) -> None:
    """Refuse a target that is of no type, or of several."""
    present = [key for key, value in values.items() if value]
    if len(present) == 1:
        return
    table.fail_on_misspelling(tuple(values))
    table.fail(
        present[-1] if present else "id",
        f"both {present[0]} and {present[-1]}" if present else "neither factory nor script nor vllm",
        'give one: factory = "module:function", script = "train.py", or vllm = "FOLDER"',
    )


def _engine(table: Table, model: str) -> dict[str, Any]:
    for key in NOT_OF_ENGINES:
        if table.has(key):
            table.fail(
                key, "the engine decides this itself", "drop the key, or give an engine argument in args"
            )
    folder = table.path_to("vllm", model, folder=True)
    if not Path(folder, MODEL_CONFIG).is_file():
        table.fail("vllm", f"no {MODEL_CONFIG} in {folder}", "give the folder of a model as vLLM loads it")
    args = table.values("args", "a table of engine arguments, such as {max_model_len = 4096}")
    for name, problem in OWN_ARGUMENTS.items():
        if name in args:
            table.fail(("args", name), problem, "drop it")
    for name in SIZES:
        if args.get(name, 1) != 1:
            problem = f"{toml_value(args[name])}: such ranks of an engine cannot be proven yet"
            table.fail(("args", name), problem, f"drop it; ranks by {RANKS} are proven")
    ranks = args.get(RANKS, 1)
    if type(ranks) is not int or not 1 <= ranks <= MAX_RANKS:
        table.fail(
            ("args", RANKS), f"{toml_value(ranks)} is no number of ranks", f"allowed: 1 to {MAX_RANKS}"
        )
    files = tuple(table.path_to("files", item, folder=False) for item in table.texts("files"))
    return {"vllm": folder, "args": args, "files": files}


def _script(table: Table, script: str) -> dict[str, Any]:
    for key in DECIDED_BY_MODEL:
        if table.has(key):
            table.fail(key, "a script decides this itself", "drop the key, or use a factory")
    return {
        "script": table.path_to("script", script, folder=False),
        "args": table.texts("args", 'a list of strings, such as ["--steps", "2"]'),
        "files": tuple(table.path_to("files", item, folder=False) for item in table.texts("files")),
        "nproc": table.integer("nproc", 1, 1, MAX_RANKS),
    }


def _factory(table: Table, factory: str) -> dict[str, Any]:
    if table.has("files"):
        table.fail("files", "only a script declares files", "a factory's model is hashed as a whole")
    if table.has("nproc"):
        table.fail(
            "nproc", "only a script runs as several ranks", "call the model in a script, as the job does"
        )
    args = table.values("args", "a table of the factory's keyword arguments, such as {layers = 6}")
    for path, call in _makers(("args",), args):
        if not isinstance(call, str) or not CALL.fullmatch(call):
            table.fail(path, f"{toml_value(call)} is not module:function", 'such as "models:Config"')
    return {"factory": factory, "args": args, "inputs": read_input_sets(table)}


def _makers(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Yield what makes an argument, with its place, of all arguments below ``value``."""
    if isinstance(value, list):
        for item in value:
            yield from _makers(path, item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from ([((*path, name), item)] if name == MADE_BY else _makers((*path, name), item))


def _target_options(table: Table) -> dict[str, Any]:
    """Return the values of the keys that may stand in ``[defaults]`` too."""
    options = table.values("options", "a table of inductor options")
    modes = table.choices("modes", MODES, ("default",))
    if options and modes != ("default",):
        table.fail("options", "torch.compile takes a mode or options, not both", "drop one of them")
    kind = table.choice("kind", TARGET_KINDS, "inference")
    grad = table.choice("grad", GRADS, "")
    if kind == "training" and grad not in ("", "grad"):
        table.fail("grad", f"a training step cannot run under {grad}", 'drop it, or kind = "inference"')
    device = table.text("device", "auto")
    if not DEVICE.fullmatch(device):
        table.fail("device", f"{device!r} is not known", "allowed: auto, cpu, cuda, cuda:N")
    cwd = table.text("cwd")
    return {
        "dtypes": table.choices("dtypes", MODEL_DTYPES, ()),
        "modes": modes,
        "options": options,
        "dynamic": _dynamic(table),
        "fullgraph": table.flag("fullgraph", False),
        "kind": kind,
        "grad": grad or ("grad" if kind == "training" else "no_grad"),
        "autocast": table.choice("autocast", AUTOCAST_DTYPES, ""),
        "device": device,
        "tracing": table.choice("tracing", TRACING, "auto"),
        "march": _march(table),
        "env": _env(table),
        "pass_env": _pass_env(table),
        "cwd": table.path_to("cwd", cwd, folder=True) if cwd else "",
        "paths": tuple(table.path_to("paths", item, folder=True) for item in table.texts("paths")),
        "tolerance": _tolerance(table),
        "timeout": table.number("timeout", 3600.0, 1, MAX_SECONDS),
        "runs": table.integer("runs", 10, 1, MAX_RUNS),
        "seed": table.integer("seed", 0, 0, 2**63 - 1),
    }


def _dynamic(table: Table) -> bool | None:
    value = table.get("dynamic")
    if value is None or value == "auto":
        return None
    if not isinstance(value, bool):
        table.fail("dynamic", f"{toml_value(value)} is not known", 'allowed: true, false, "auto"')
    return value


def _march(table: Table) -> tuple[str, ...]:
    """Return the levels, one or a list, unless ``env`` has their variables with other values."""
    level = table.get("march")
    names = tuple(march.LEVELS)
    if isinstance(level, str):
        levels = tuple(filter(None, [table.choice("march", names, "")]))
    else:
        levels = table.choices("march", names, ())
    for one in levels:
        for name, value in march.variables(one).items():
            if (other := _env(table).get(name, value)) != value:
                problem = f'{other!r}, and march = "{one}" needs {value!r}'
                table.fail(("env", name), problem, "drop one of them")
    return levels


def _env(table: Table) -> dict[str, str]:
    value: dict[str, Any] = dict(table.defaults.data.get("env", {})) if table.defaults else {}
    value |= table.typed("env", dict, "a table of strings", {})
    for key, item in value.items():
        _check_variable(table, ("env", key), key)
        if not isinstance(item, str):
            table.fail(("env", key), f"{toml_value(item)} is not a string", f'{key} = "{str(item).lower()}"')
    return value


def _pass_env(table: Table) -> tuple[str, ...]:
    names = table.texts("pass_env", 'a list of variables, such as ["MODEL_REVISION"]')
    for name in names:
        _check_variable(table, ("pass_env",), name)
    return names


def _check_variable(table: Table, path: KeyPath, name: str) -> None:
    """Refuse what is no variable's name, and the variables that `warm` sets itself."""
    if not VARIABLE.fullmatch(name):
        table.fail(path, f"{name!r} is not the name of a variable", "letters, digits and _")
    if name in OWN_VARIABLES or name.startswith("CACHESVC_"):
        hint = "use paths" if name == "PYTHONPATH" else "drop it: a fresh process must not find the builder's"
        table.fail(path, f"warm sets this one itself for each phase: {name}", hint)


def _tolerance(table: Table) -> dict[str, float] | None:
    value = table.typed("tolerance", dict, "a table: {rtol = 1e-3, atol = 1e-4}", None)
    if value is None:
        return None
    owner = table if table.has("tolerance") or not table.defaults else table.defaults
    inner = Table(value, (*owner.path, "tolerance"), table.source, f"{owner.label}: tolerance")
    tolerance = {name: inner.number(name, 0.0, 0, 1e6) for name in ("rtol", "atol")}
    inner.finish()
    return tolerance
