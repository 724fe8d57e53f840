"""`train --profile`: where the time and the memory of a training run went."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from time import perf_counter
from typing import Any

import torch

from shared.system.errors import describe
from shared.system.stages import Stage, current_stage, no_stage
from trainer.compute.device import Device
from trainer.compute.device_clock import DeviceClock
from trainer.estimate.estimate import step_flops
from trainer.estimate.speed import matmul_rate
from trainer.runs.profile import Profile, write_profile
from trainer.runs.profile_text import profile_text
from trainer.training.loop import FORWARD_BACKWARD
from trainer.training.run import Run
from trainer.training.step_trace import StepTrace

logger = logging.getLogger(__name__)

STEP = "rest of the step"
"""The stage of a whole optimizer step, around the stages of its parts."""

_WARMUP, _TRACED = "warm-up", "traced steps"
_WARMUP_STEPS = 5
"""In which memory grows, caches fill, and `--compile` compiles."""
_FIRST_TRACED = 20
"""Steps before the traced ones: those that the forecast of the time left measures."""
_TRACED_STEPS = 3
_TRACED_PASSES = 4
"""Of a step with more passes only the last ones are traced, and no further step: a trace grows with their number."""


def plan_steps(steps: int) -> tuple[int, range]:
    """How many of the first steps of a start are its warm-up, and which ones are traced, from 0.

    At least one is neither, however few there are.
    """
    warmup = min(_WARMUP_STEPS, max(0, steps - 1) // 2)
    count = min(_TRACED_STEPS, max(0, steps - warmup - 1))
    first = min(_FIRST_TRACED, steps - count)
    return warmup, range(first, first + count)


class TrainingProfile:
    """Measures one start of a run by stages, and traces a few of its steps.

    Steps of the warm-up and traced steps count as a whole; in the others, each stage costs some readings of clocks.

    Args:
        device: Where this process trains.
    """

    def __init__(self, device: Device) -> None:
        self._profile = Profile("train", "tokens", DeviceClock() if device.torch_device.type == "cuda" else None)
        self._inner: Stage = self._profile.stage  # for the stages of the present step
        self._warmup, self._to_trace = plan_steps(1)
        self._trace: StepTrace | None = None
        self._operators: list[dict[str, Any]] = []
        self._traced: list[int] = []
        self._steps = self._passes = self._passes_before = self._traced_passes = 0
        self._tokens = self._measured_tokens = self._measured_steps = 0  # tokens are those of this process
        self._measured_seconds = 0.0

    def stage(self, name: str, amount: int = 0) -> AbstractContextManager[None]:
        """The `Stage` of the run."""
        if name == STEP:
            return self._step()
        if name == FORWARD_BACKWARD:
            self._begin_pass()
            return nullcontext()
        if name == "forward":
            self._tokens += amount
        return self._inner(name, amount)

    @contextmanager
    def running(self, run: Run, steps: int) -> Iterator[None]:
        """Measure the training, and write the profile at its end, whatever ends it.

        Args:
            run: What is trained.
            steps: How many are to be taken.
        """
        self._warmup, self._to_trace = plan_steps(steps)
        self._run = run
        run.folder.delete_profile()
        outside = current_stage.set(self.stage)
        try:
            yield
        finally:
            current_stage.reset(outside)
            self._finish()

    @contextmanager
    def _step(self) -> Iterator[None]:
        number, tokens, begin = self._steps, self._tokens, perf_counter()
        name = self._kind(number)
        self._passes_before, self._passes = self._passes, 0
        with self._profile.stage(name):
            self._inner = {_WARMUP: no_stage, _TRACED: self._annotate}.get(name, self._profile.stage)
            if name == _TRACED and self._trace is None:
                self._trace = StepTrace(self._run.folder.trace_file, self._run.device.torch_device)
                self._trace.start()
            try:
                yield
            finally:
                self._inner = self._profile.stage
            self._steps += 1
            if name == _TRACED and self._trace is not None:
                self._traced.append(self._steps)
                self._traced_passes = self._passes
                if len(self._traced) == len(self._to_trace) or self._passes > _TRACED_PASSES:
                    self._end_trace()
        if name == STEP:
            self._measured_steps += 1
            self._measured_tokens += self._tokens - tokens
            self._measured_seconds += perf_counter() - begin

    def _kind(self, number: int) -> str:
        if number < self._warmup:
            return _WARMUP
        return _TRACED if number in self._to_trace else STEP

    def _begin_pass(self) -> None:
        """Begin to record before the last passes of the first step that is traced; it has as many as the one before."""
        is_last = self._passes >= self._passes_before - _TRACED_PASSES
        if self._trace is not None and not self._trace.is_recording and is_last:
            self._trace.record()
        elif self._trace is not None and self._passes >= self._passes_before + _TRACED_PASSES:
            self._traced.append(self._steps + 1)  # a part of it: a batch schedule has got to larger steps
            self._end_trace()
        self._passes += 1

    def _annotate(self, name: str, amount: int = 0) -> AbstractContextManager[Any]:  # noqa: ARG002 - a `Stage`
        """A span of this name in the trace."""
        return self._trace.stage(name) if self._trace is not None and self._trace.is_recording else nullcontext()

    def _end_trace(self) -> None:
        """Write the trace of the steps that were traced, if there are any."""
        trace, self._trace = self._trace, None
        self._to_trace = range(0)
        if trace is None:
            return
        if not self._traced:
            trace.discard()
            return
        try:
            self._operators = trace.stop()
            logger.info("profile: traced %s; open %s at https://ui.perfetto.dev", self._traced_steps(), trace.path)
        except (OSError, RuntimeError) as error:
            logger.warning("profile: no trace: %s", describe(error))

    def _traced_steps(self) -> str:
        """Which ones, for people."""
        if not self._operators:
            return "no step"
        first, last = self._traced[0], self._traced[-1]
        passes = f"the last {_TRACED_PASSES} passes of step" if self._traced_passes > _TRACED_PASSES else "step"
        return f"{passes} {first}" if first == last else f"steps {first} to {last}"

    def _finish(self) -> None:
        """Write the profile. A run of hours does not fail where that fails."""
        try:
            self._end_trace()
            content = self._content()
            write_profile(self._run.folder.path, content, profile_text(content))
            logger.info("%s", profile_text(content, operators=False))
        except (OSError, RuntimeError) as error:
            logger.warning("no profile could be written: %s", describe(error))

    def _content(self) -> dict[str, Any]:
        """What `profile.json` has: in all, in the measured steps, and in the traced ones."""
        run, processes = self._run, self._run.processes.count
        on_cuda = run.device.torch_device.type == "cuda"
        device_peak = torch.cuda.max_memory_allocated(run.device.torch_device) if on_cuda else None
        content = self._profile.content(self._tokens * processes)
        seconds, tokens = self._measured_seconds, self._measured_tokens * processes
        memory = run.step_memory
        return content | {
            "device": str(run.device),
            "processes": processes,
            "steps": self._steps,
            "warmup_steps": min(self._warmup, self._steps),
            "measured_steps": self._measured_steps,
            "tokens_per_second": tokens / seconds if seconds else None,
            **self._utilization(tokens / seconds if seconds else None),
            "device_peak_memory": device_peak,
            "estimated_memory": {
                "parameters": memory.parameters,
                "gradients": memory.gradients,
                "optimizer state": memory.optimizer,
                "activations": sum(memory.activations.values()),
                "temporary": memory.temporary,
                "allocator": memory.gaps,
                "program": memory.process,
            },
            "traced": self._traced_steps(),
            "traced_steps": self._traced if self._operators else [],
            "operators": self._operators,
        }

    def _utilization(self, tokens_per_second: float | None) -> dict[str, float | None]:
        """Operations a second, and what the device reaches in the model's matrix products alone (`matmul_rate`)."""
        run, o = self._run, self._run.settings.optimization
        flops = rate = None
        if tokens_per_second is not None:
            config = run.config
            flops = step_flops(run.settings, config) / run.settings.tokens_per_step * tokens_per_second
            with suppress(RuntimeError):  # no memory is left for it
                rate = run.processes.count * matmul_rate(config, o.batch_size * config.context_length, run.device)
        return {
            "flops_per_second": flops,
            "matmul_flops_per_second": rate,
            "utilization": flops / rate if flops and rate else None,
        }
