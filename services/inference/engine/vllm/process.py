"""vLLM as an engine process: its AsyncLLM, and the processes that it starts."""

import errno
import multiprocessing
import signal
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import structlog

from services.inference.engine.errors import LoadError, LoadTimeoutError
from services.inference.engine.ipc import EngineConfig, Ready, model_identity
from services.inference.engine.supervisor import describe_exit
from services.inference.engine.types import SequenceRequest
from services.inference.engine.vllm.loading import device_of, engine_arguments, set_environment
from services.inference.engine.vllm.parameters import sampling_arguments
from services.inference.engine.vllm.stats import VllmStats
from shared.lm import read_description
from shared.lm.description import valid_tokens
from shared.system.errors import describe, is_no_thread

_log = structlog.get_logger("ownlm.engine")

_SHUTDOWN_SECONDS = 1.0
_KILLED_SECONDS = 10.0
_NO_ROOM = {errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC}


class VllmProcess:
    """An AsyncLLM, which starts processes of its own while the model is loaded. See `EngineProcess`.

    Args:
        config: The model, and how it is run.
        identity: Of the model, by `model_identity`: a folder that holds another one is refused.
        name: The model's name in vLLM's metrics.
        vllm_args: Further arguments of `vllm.AsyncEngineArgs`.
        stats: What it reports its steps to.
        load_timeout: Seconds that it may take to load the model; None: no limit.

    Attributes:
        valid_ids: The ids that have a token, where the model has rows without one.
    """

    def __init__(
        self,
        config: EngineConfig,
        identity: str,
        name: str,
        vllm_args: Mapping[str, Any],
        stats: VllmStats,
        *,
        load_timeout: float | None = None,
    ) -> None:
        self.valid_ids: frozenset[int] | None = None
        self._config = config
        self._identity = identity
        self._name = name
        self._vllm_args = vllm_args
        self._stats = stats
        self._load_timeout = load_timeout
        self._llm: Any = None
        self._others = set(multiprocessing.active_children())
        self._children: list[BaseProcess] = []
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The id of its EngineCore, which runs the scheduler."""
        return self._children[0].pid if self._children else None

    @property
    def is_dead(self) -> bool:
        """Whether it can run nothing any more."""
        return bool(self._llm.errored)

    def wait_ready(self) -> Ready:
        """Start vLLM, and wait until the model is loaded.

        Raises:
            LoadError: It cannot be started, does not have a setting, or the folder holds another model than before.
            ModelFolderError: The folder is not valid.
            OSError: The system has no descriptor, process, thread or memory for it.
        """
        set_environment(self._config)
        folder = read_description(self._config.model_dir)
        if model_identity(folder.tokenizer.fingerprint, folder.config) != self._identity:
            raise LoadError("the model folder now holds another model; start the service again", reported=True)
        mask = valid_tokens(folder.tokenizer, folder.config)
        self.valid_ids = None if mask.all() else frozenset(mask.nonzero()[0].tolist())
        self._allowed_ids = None if self.valid_ids is None else sorted(self.valid_ids)
        arguments = engine_arguments(self._config, folder.config, self._vllm_args)
        try:
            self._start({**arguments, "served_model_name": [self._name]})
        except LoadTimeoutError:
            raise
        except Exception as error:  # vLLM raises errors of any type, also where memory of a GPU is not free yet
            reason = f"vLLM cannot load the model: {describe(error)}"
            code = errno.EAGAIN if is_no_thread(error) else getattr(error, "errno", None)
            if code in _NO_ROOM:
                raise OSError(code, reason) from error
            raise LoadError(reason, reported=True, transient=True) from error
        if self._is_closed:
            self.end()
        num_blocks = self._stats.stats(num_live=0, restarts=0).kv_blocks_total
        return Ready(
            identity=self._identity,
            device=device_of(self._config),
            dtype=arguments["dtype"],
            context_length=self._llm.model_config.max_model_len,
            num_blocks=num_blocks,
            num_slots=self._config.max_batch,
            kv_dtype=arguments["dtype"],
            num_allocated_blocks=num_blocks,
        )

    def _start(self, arguments: dict[str, Any]) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        engine_args = AsyncEngineArgs(**arguments)
        # Ctrl-C is for this process, which drains first: blocked here, the signal stays blocked in the processes that
        # vLLM starts. multiprocessing's tracker unblocks it when it starts, so it must run before.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with _killed_after(self._load_timeout, self._others):
                self._llm = AsyncLLM.from_engine_args(engine_args, stat_loggers=[self._stats])
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        self._children = list(_children_besides(self._others))

    def generate(self, request: SequenceRequest, name: str) -> AsyncIterator[Any]:
        """Generate a sequence: yields `vllm.RequestOutput`s of what is new. vLLM aborts it when this is canceled."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        arguments = sampling_arguments(request, self._allowed_ids)
        params = SamplingParams(**arguments, output_kind=RequestOutputKind.DELTA)
        outputs: AsyncIterator[Any] = self._llm.generate(tokens_input(list(request.prompt_ids)), params, name)
        return outputs

    def end(self) -> str:
        """End its processes, also those of a load that failed, and return how the first one ended; blocks.

        Raises:
            RuntimeError: One cannot even be killed.
        """
        codes = [process.exitcode for process in self._children if process.exitcode is not None]
        if self._llm is not None:
            try:
                self._llm.shutdown(timeout=_SHUTDOWN_SECONDS)
            except Exception as error:
                _log.warning("vLLM did not shut down cleanly", exc_info=error)
        _kill_children_besides(self._others)
        for process in self._children:
            process.join(_KILLED_SECONDS)
            if process.is_alive():
                raise RuntimeError(f"process {process.pid} did not end after SIGKILL")
        return describe_exit(codes[0]) if codes else "without an exit code of its own"

    def close(self) -> None:
        """End its processes, also while it loads; those that cannot be killed are left to the system."""
        self._is_closed = True
        with suppress(RuntimeError):
            self.end()


def _children_besides(known: set[BaseProcess]) -> set[BaseProcess]:
    return set(multiprocessing.active_children()) - known


def _kill_children_besides(known: set[BaseProcess]) -> None:
    for process in _children_besides(known):
        process.kill()


@contextmanager
def _killed_after(seconds: float | None, known: set[BaseProcess]) -> Iterator[None]:
    """Kill the processes that vLLM starts, if they take too long: it waits for them as long as they run.

    Args:
        seconds: None: no limit.
        known: Other children of this process.

    Raises:
        LoadTimeoutError: They were killed.
    """
    if seconds is None:
        yield
        return
    is_over = threading.Event()

    def kill() -> None:
        is_over.set()
        _kill_children_besides(known)

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if is_over.is_set():
            raise LoadTimeoutError(seconds) from error
        raise
    finally:
        timer.cancel()
