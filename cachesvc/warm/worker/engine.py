"""Do the phases of a vLLM target: make its configuration, start it on a fresh host, and let it answer.

The engine compiles in a worker, a process of its own. vLLM imports `engine_worker` there, which restores or
captures. This module runs in the process that owns the engine, in the place of `execution`.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import json
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from cachesvc_client.environment.detect import detect
from cachesvc_client.hooks import counters
from cachesvc_client.wire import codec
from cachesvc_client.wire.digest import Digest

from ..spec.plan import Job
from ..spec.spec import MODEL_CONFIG, RANKS
from . import ranks
from .around_compile import RESTORE_SECONDS
from .cache_files import handed_files
from .phase import PhaseRequest, PhaseResult, Times
from .user_code import UserCodeError, add_import_paths, one_line

REQUEST = "CACHESVC_WARM_REQUEST"
"""Variable with the path of the request that `engine_worker` obeys; only `warm` sets it."""
EXTENSION = "cachesvc.warm.worker.engine_worker.WarmWorker"
PROMPTS = (tuple(range(1, 17)), (1, 2))
"""Tokens of the prompts: every model has tokens with such numbers."""
TOKENS = 8
"""Number of tokens that are generated for each prompt, by a model that generates."""

_OF_MODEL = ("*config.json", "*.py")
"""Patterns of the files of a model that decide what is compiled, beside what the spec names."""
_ERROR = re.compile(r"(?:^|\s)((?:[\w.]*)(?:Error|Exception|Interrupt|SystemExit)): (\S.*)$")
_SECOND_HAND = re.compile(r"(Engine core|WorkerProc) initialization failed|EngineCore encountered an issue")
"""Matches errors with which a process of the engine says that another one has failed."""
_LOG_BYTES = 1 << 20
"""Number of bytes at the end of the log in which the error of another process is looked for."""

_LONGEST_TMPDIR = 60
"""Number of bytes of a TMPDIR in which vLLM's sockets can lie: a socket's path has at most 107, unix(7)."""


def describe_engine(request: PhaseRequest) -> PhaseResult:
    """Make the engine's configuration, and return what identifies the target. Starts no engine.

    The fingerprint has no number of threads: vLLM gives its worker another one than this process has.
    Raises ``UserCodeError`` for what no engine would start with.
    """
    job, environment = request.job, detect()
    _read_model_config(job)
    version = _make_configuration(job)
    environment.pop("threads", None)
    return PhaseResult(request.phase, script=engine_digest(job, version), fingerprint=environment)


def engine_digest(job: Job, version: str) -> Digest:
    """Return the identity of an engine target: vLLM's ``version``, the path of the model, its files that
    decide what is compiled, those that the spec names, and the job's options."""
    model = Path(job.spec.vllm)
    decisive = {path for pattern in _OF_MODEL for path in model.glob(pattern) if path.is_file()}
    identity = {
        "vllm": version,
        "model": str(model),
        "model_files": {path.name: Digest.of(path.read_bytes()) for path in decisive},
        "files": [[Path(name).name, Digest.of(Path(name).read_bytes())] for name in job.spec.files],
        "spec": job.options,
    }
    return Digest.of(codec.canonical(identity))


def run_engine(request: PhaseRequest) -> PhaseResult:
    """Start the engine, let it answer, and return what its worker compiled and used, and the answers.

    A replay has no compiler on its PATH. Raises ``UserCodeError`` if the engine does not start or answer.
    """
    observer = counters.start(audit=True)
    with _prepared(request):
        _restore_here(request)
        begin = time.perf_counter()
        engine = _start(request.job)
        _answer(engine, PROMPTS[:1], 1)
        seconds = time.perf_counter() - begin
        tokens = _answer(engine, PROMPTS, TOKENS)
        result = _results(engine, request)
        result = replace(result, times={"engine": Times(seconds)}, tokens=tokens)
        result = _add_processes(result, observer.snapshot())
        here = (f"{kind}/{path}" for kind, paths in handed_files().items() for path in paths)
        result = replace(result, files_read=tuple(sorted({*result.files_read, *here})))
        engine.engine_core.shutdown()
    return result


def _results(engine: Any, request: PhaseRequest) -> PhaseResult:
    """Return what the engine's workers did, as one result: counts are sums, and files are those of all."""
    answers = [
        codec.build(PhaseResult, json.loads(text)) for text in engine.collective_rpc("cachesvc_result")
    ]
    if len(answers) != request.job.ranks:
        raise UserCodeError(f"{len(answers)} of {request.job.ranks} workers of the engine answered")
    if len(answers) == 1:
        return answers[0]
    result = ranks.combine_results(dict(enumerate(answers)), request.stage)
    if result.error:
        raise UserCodeError(result.error)
    return result


def arm_hooks() -> None:
    """Put the client's hooks in place, in a process of an engine that has not imported torch yet.

    A service has them by then. They note the Python code of operators while vLLM registers these, which is a
    part of what decides whether a graph fits. In any other process, do nothing.
    """
    if os.environ.get(REQUEST):
        from cachesvc_client.process.process import process

        process().arm()


def _restore_here(request: PhaseRequest) -> None:
    """Put the hooks in place, and restore the entry in this process as `cachesvc run` does in an API server.

    The worker restores by itself. Here only descriptions of models are used, so a bundle that does not fit
    this process, such as one for another number of threads, is no error.
    """
    import cachesvc_client

    if not (request.bundle or request.name):
        arm_hooks()
        return
    strict = os.environ.pop("CACHESVC_STRICT", None)
    try:
        session = cachesvc_client.attach(request.name or None, bundle=request.bundle or None)
        if session is not None:
            session.wait(RESTORE_SECONDS)
    finally:
        if strict is not None:
            os.environ["CACHESVC_STRICT"] = strict


def path_without_compilers(path: str, folder: Path) -> str:
    """Return a PATH without compilers. Folders of ``path`` that have one are replaced by folders below
    ``folder``, with links to the other programs."""
    places = []
    for index, place in enumerate(filter(None, path.split(os.pathsep))):
        programs = sorted(os.listdir(place)) if os.path.isdir(place) else []
        if not any(map(counters.is_compiler, programs)):
            places.append(place)
            continue
        links = folder / str(index)
        links.mkdir()
        for program in programs:
            if not counters.is_compiler(program):
                (links / program).symlink_to(Path(place, program).absolute())
        places.append(str(links))
    return os.pathsep.join(places)


def _read_model_config(job: Job) -> None:
    """Raise ``UserCodeError`` unless the model's configuration is a JSON object."""
    path = Path(job.spec.vllm, MODEL_CONFIG)
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UserCodeError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserCodeError(f"{path}: not JSON: {one_line(str(error))}") from error
    if not isinstance(content, dict):
        raise UserCodeError(f"{path}: not a JSON object")


def _make_configuration(job: Job) -> str:
    """Make the configuration that the engine would have, and return vLLM's version."""
    if importlib.util.find_spec("vllm") is None:
        raise UserCodeError(
            f"vLLM is not installed for {sys.executable} (run cachesvc warm with a Python that has vLLM)"
        )
    try:
        import vllm
        from vllm.usage.usage_lib import UsageContext
    except Exception as error:
        raise UserCodeError(f"vLLM cannot be imported: {one_line(error)}") from error
    arguments = _engine_arguments(job)
    try:
        config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
    except Exception as error:
        raise UserCodeError(f"vLLM refuses args or the model: {_reason(error)}") from error
    _check_ranks(job, config.parallel_config)
    return str(vllm.__version__)


def _check_ranks(job: Job, parallel: Any) -> None:
    """Raise ``UserCodeError`` for ranks that cannot be proven. ``parallel``: a ``ParallelConfig`` of vLLM."""
    if parallel.world_size_across_dp != job.ranks:
        problem = f"the engine has {parallel.world_size_across_dp} ranks, and args says {job.ranks}"
        raise UserCodeError(f"{problem} (only ranks by {RANKS} can be proven)")
    backend = parallel.distributed_executor_backend
    if job.ranks > 1 and (backend != "mp" or parallel.local_world_size != parallel.world_size):
        problem = f"the engine's ranks are started by {backend!r} or on several nodes"
        raise UserCodeError(f'{problem} (give distributed_executor_backend = "mp" on one node)')


def _engine_arguments(job: Job) -> Any:
    """Return vLLM's own record of the engine arguments. Raises ``UserCodeError`` for one that it refuses."""
    import vllm
    from vllm.engine.arg_utils import EngineArgs

    add_import_paths(job)
    known = [field.name for field in fields(EngineArgs) if field.init]
    for name in job.spec.args:
        if name not in known:
            near = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.6)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise UserCodeError(f"args: vLLM {vllm.__version__} has no engine argument {name!r}{hint}")
    arguments: dict[str, Any] = dict(job.spec.args)  # type: ignore[arg-type]
    try:
        return EngineArgs(model=job.spec.vllm, worker_extension_cls=EXTENSION, **arguments)
    except Exception as error:
        raise UserCodeError(f"vLLM refuses args: {_reason(error)}") from error


def _start(job: Job) -> Any:
    """Start the engine with the defaults of ``vllm serve``, and its worker with our extension."""
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    arguments = _engine_arguments(job)
    try:
        return LLMEngine.from_engine_args(arguments, usage_context=UsageContext.OPENAI_API_SERVER)
    except Exception as error:
        raise UserCodeError(f"the engine did not start: {_first_hand(error)}") from error


def _answer(engine: Any, prompts: tuple[tuple[int, ...], ...], count: int) -> tuple[tuple[int, ...], ...]:
    """Return ``count`` tokens for each prompt, generated greedily; of a model that generates none, such as an
    embedding model, the bits of the numbers that it answers with. One prompt after the other: what else is in
    a batch may change the last bits of its numbers."""
    answers: list[tuple[int, ...]] = []
    try:
        parameters = _parameters(engine.get_supported_tasks(), count)
        for index, prompt in enumerate(prompts):
            engine.add_request(str(index), {"prompt_token_ids": list(prompt)}, parameters)
            outputs: list[Any] = []
            while engine.has_unfinished_requests():
                outputs += engine.step()
            answers.append(_numbers(outputs[-1].outputs))
    except Exception as error:
        raise UserCodeError(f"the engine did not answer: {_first_hand(error)}") from error
    return tuple(answers)


def _parameters(tasks: Collection[str], count: int) -> Any:
    """Return what a request asks for. Raises ``ValueError`` for an engine that can do none of it."""
    from vllm import PoolingParams, SamplingParams

    if "generate" in tasks:
        return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
    for task in ("embed", "classify", "token_embed", "token_classify"):
        if task in tasks:
            return PoolingParams(task=task)
    raise ValueError(f"it generates, embeds and classifies nothing; its tasks: {', '.join(tasks)}")


def _numbers(outputs: Any) -> tuple[int, ...]:
    """Return the tokens of an answer, or the bits of its numbers."""
    if isinstance(outputs, list):
        return tuple(outputs[0].token_ids)
    return tuple(outputs.data.float().flatten().numpy().view("int32").tolist())


@contextlib.contextmanager
def _prepared(request: PhaseRequest) -> Iterator[None]:
    """Set the variables of the engine's processes, and make the folders that these name."""
    folder = Path(tempfile.mkdtemp())
    (folder / "request.json").write_text(json.dumps(codec.plain(request)))
    os.environ[REQUEST] = str(folder / "request.json")
    os.environ["VLLM_NO_USAGE_STATS"] = "1"  # a build is no use of vLLM
    if (
        request.job.ranks > 1
    ):  # as vllm serve does: a worker starts with nothing of this process; not in the hash
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    if request.phase == "replay":
        os.environ["PATH"] = path_without_compilers(os.environ.get("PATH", ""), folder)
    with contextlib.ExitStack() as stack:
        if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_TMPDIR:
            sockets = tempfile.TemporaryDirectory(prefix="cachesvc-", dir="/tmp", ignore_cleanup_errors=True)
            os.environ["VLLM_RPC_BASE_PATH"] = stack.enter_context(sockets)  # no part of vLLM's hash
        yield


def _add_processes(result: PhaseResult, here: counters.Observation) -> PhaseResult:
    """Return the worker's result with the programs that any process of the engine started."""
    assert result.observation is not None
    compilers = max(here.compiler_processes, result.observation.compiler_processes)
    observation = replace(result.observation, processes=here.processes, compiler_processes=compilers)
    return replace(result, observation=observation)


def _reason(error: Exception) -> str:
    """Return one line about an error; of an error of pydantic, which has several, the first that it names."""
    details = getattr(error, "errors", None)
    if callable(details) and (first := next(iter(details()), None)):
        where = ".".join(map(str, first.get("loc", ())))
        return f"{where}: {one_line(first.get('msg', ''))}" if where else one_line(first.get("msg", ""))
    return one_line(error)


def _first_hand(error: Exception) -> str:
    """Return one line about an error; where it is about another process, that one's last error in the log."""
    text = _reason(error)
    return next(errors_in(read_log()), text) if _SECOND_HAND.search(text) else text


def errors_in(log: str) -> Iterator[str]:
    """Yield the errors of tracebacks in a log, the last one first, without those that are about another
    process. vLLM begins lines of its processes with their names."""
    for line in reversed(log.splitlines()):
        found = _ERROR.search(line)
        if found and not _SECOND_HAND.search(line):
            yield f"{found[1].rpartition('.')[2]}: {found[2].strip()}"[:300]


def read_log() -> str:
    """Return the end of this process's output, if that is a file: the engine's processes write to it too."""
    sys.stdout.flush()
    try:
        if not stat.S_ISREG(os.fstat(1).st_mode):
            return ""
        with open("/proc/self/fd/1", "rb") as file:
            file.seek(max(0, os.fstat(1).st_size - _LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
