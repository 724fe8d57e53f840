"""Runs steps on the CPU, in compiled code over packed weights."""

import time
from collections.abc import Sequence

import numpy as np

from services.inference.engine.runner.cpu.cache_memory import CacheMemory
from services.inference.engine.runner.cpu.kernels import step as kernels
from services.inference.engine.runner.cpu.kernels.intrinsics import (
    FLOAT32,
    LANES,
)
from services.inference.engine.runner.cpu.kernels.layout import (
    Batch,
    Cache,
    Floats,
    Step,
    Threads,
    Weights,
    Words,
)
from services.inference.engine.runner.cpu.panels import number_bytes
from services.inference.engine.runner.cpu.rotation import Rotation
from services.inference.engine.runner.cpu.sizes import block_bytes, new_activations, shape_of
from services.inference.engine.runner.cpu.step_threads import StepThreads
from services.inference.engine.runner.cpu.thread_pool import KernelThreadPool
from services.inference.engine.runner.cpu.weights import aligned_bytes
from services.inference.engine.runner.protocol import Segment, StepResult
from services.inference.engine.sampler import Sampler
from services.inference.engine.types import BLOCK_SIZE, SequenceRequest, TokenLogprobs, num_blocks_of
from shared.kernels.compiling import Call, Kernel
from shared.lm import ModelConfig

assert BLOCK_SIZE == LANES, "a block of the KV cache is a vector of positions"

_LONGER = 1.8  # of a step that has parts of prompts, over one without


class CpuRunner:
    """A model, its KV cache, and room for one step that is allocated once; a `Runner`.

    Args:
        config: The architecture.
        weights: From `pack_weights`.
        sampler: Samples from logits that are views of one array, valid until the next step.
        thread_pool: The threads that run a step; the sampler may use it too.
        num_blocks: The most blocks of the KV cache.
        num_slots: Sequences that may run at the same time.
        max_step_tokens: The most tokens of a step.
        context_length: The most tokens of a sequence, where the cache has room for as many.
        kv_kind: What keys and values are kept as: FLOAT32, BFLOAT16 or FLOAT16.
        thread_counts: How many of the pool's threads may run a step; all by default. Of several numbers the best for
            each number of rows is chosen by time, for which steps are run at once.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        sampler: Sampler[Floats],
        thread_pool: KernelThreadPool,
        *,
        num_blocks: int,
        num_slots: int,
        max_step_tokens: int,
        context_length: int,
        kv_kind: int = FLOAT32,
        thread_counts: Sequence[int] = (),
    ):
        self.num_blocks = num_blocks
        self.num_slots = num_slots
        self.max_step_tokens = max_step_tokens
        self._vocab_size = config.vocab_size
        self._sampler = sampler
        self._thread_pool = thread_pool
        self._context_length = min(context_length, num_blocks * BLOCK_SIZE)
        self._weights = weights
        self._step_threads = StepThreads(thread_counts or [thread_pool.num_threads])
        self._shape = shape_of(config, kv_kind, self._context_length)
        self.block_memory = CacheMemory(
            num_blocks,
            block_bytes(config, kv_kind),
            num_first=num_blocks_of(self._context_length),
            num_slots=num_slots,
        )
        self._cache = Cache(self.block_memory.array, kv_kind, number_bytes(kv_kind))
        self._rotation = Rotation(config, self._context_length)
        self._work = new_activations(
            config,
            weights,
            num_slots,
            max_step_tokens,
            num_threads=thread_pool.num_threads,
            scratch=self._shape.scratch,
        )
        blocks_of_sequence = num_blocks_of(self._context_length)
        self._batch = Batch(
            tokens=np.zeros(max_step_tokens, np.int64),
            positions=np.zeros(max_step_tokens, np.int64),
            tables=np.zeros(max_step_tokens, np.int64),
            blocks=np.zeros(min(num_slots, max_step_tokens) * blocks_of_sequence, np.int64),
            outputs=np.zeros(max(num_slots, max_step_tokens), np.int64),
        )
        step = Step(
            self._shape,
            config.norm_eps,
            weights,
            self._rotation.values,
            self._cache,
            self._batch,
            self._work,
            num_rows=0,
        )
        self._layers = _ParallelCall(kernels.run_layers, thread_pool, step)
        self._head = _ParallelCall(kernels.run_head, thread_pool, step)
        self._logits = self._work.logits.values.reshape(num_slots, -1)[:, : config.vocab_size]
        self._step_threads.measure(self._run_idle, max_step_tokens)

    def open_slot(self, slot: int, request: SequenceRequest, output: Sequence[int] = ()) -> None:
        """See `Runner`."""
        self._sampler.open(slot, request, output)

    def close_slot(self, slot: int) -> None:
        """See `Runner`."""
        self._sampler.close(slot)

    def copy_block(self, source: int, target: int) -> None:
        """See `Runner`."""
        blocks = self._cache.memory.reshape(self.num_blocks, -1)
        blocks[target] = blocks[source]

    def run(self, segments: Sequence[Segment]) -> StepResult:
        """See `Runner`."""
        ends = self.forward(segments)
        result = StepResult()
        slots = [slot for segment in segments for slot in segment.sample_slots]
        if slots:
            outputs = [end - 1 for segment, end in zip(segments, ends, strict=True) for _ in segment.sample_slots]
            result.sampled_tokens = self._sampler.sample(self.logits(outputs), slots)
        for segment, end in zip(segments, ends, strict=True):
            result.prompt_logprobs.append(self._score(segment, end - len(segment.tokens)))
        return result

    def rows_beside(self, num_rows: int) -> int | None:
        """How many rows a step of `num_rows` has time for besides, by measured times, if it may take 1.8 times as long.

        None where nothing is known of longer steps.
        """
        rows = self._step_threads.rows_within(num_rows, _LONGER)
        return None if rows is None else rows - num_rows

    def forward(self, segments: Sequence[Segment]) -> list[int]:
        """Run all layers; returns where each segment's tokens end among those of the step."""
        num_rows, ends = self._lay_out(segments)
        num_threads = self._step_threads.choose(num_rows)
        self._step_threads.record(num_rows, num_threads, self._run_layers(num_rows, num_threads))
        return ends

    def logits(self, outputs: Sequence[int]) -> Floats:
        """The logits after tokens of the last `forward`, [len(outputs), vocab_size]; at most `num_slots` at once."""
        if len(outputs) > self.num_slots:
            raise ValueError(f"logits of {len(outputs)} tokens requested at once; the most is {self.num_slots}")
        self._batch.outputs[: len(outputs)] = outputs
        self._head.run(self._step_threads.best(len(outputs)), len(outputs))
        return self._logits[: len(outputs)]

    def _run_layers(self, num_rows: int, num_threads: int) -> float:
        """Returns how long it took, in seconds."""
        began = time.perf_counter()
        self._layers.run(num_threads, num_rows)
        return time.perf_counter() - began

    def _run_idle(self, num_rows: int, num_threads: int) -> float:
        """Run tokens 0 at the first position of block 0, which is no sequence's yet; returns the layers' seconds."""
        seconds = self._run_layers(num_rows, num_threads)
        # Its weights take the layers' place in the cache, as in any step.
        self._head.run(num_threads, min(num_rows, self.num_slots))
        return seconds

    def _lay_out(self, segments: Sequence[Segment]) -> tuple[int, list[int]]:
        """Write the batch of a step, after checking all that compiled code relies on.

        Raises:
            ValueError: More tokens than fit, or a token, position or block that does not exist.
        """
        batch = self._batch
        tokens: list[int] = []
        positions: list[int] = []
        tables: list[int] = []
        blocks: list[int] = []
        ends = []
        # Lists first: to write to an array costs as much for one number as for hundreds.
        for segment in segments:
            last = segment.start + len(segment.tokens) - 1
            tables += [len(blocks)] * len(segment.tokens)
            tokens += segment.tokens
            positions += range(segment.start, last + 1)
            blocks += segment.blocks
            if len(tokens) > len(batch.tokens) or len(blocks) > len(batch.blocks) or last >= self._context_length:
                raise ValueError(
                    f"a step of {len(tokens)} tokens, one of them at position {last}, exceeds the memory of the runner"
                )
            if last >= len(segment.blocks) * BLOCK_SIZE:
                raise ValueError(f"position {last} is in none of {len(segment.blocks)} blocks")
            self._rotation.reach(last)
            ends.append(len(tokens))
        num_rows = len(tokens)
        batch.tokens[:num_rows], batch.positions[:num_rows], batch.tables[:num_rows] = tokens, positions, tables
        batch.blocks[: len(blocks)] = blocks
        _check_below(batch.tokens[:num_rows], self._vocab_size, "token")
        _check_below(batch.blocks[: len(blocks)], self.num_blocks, "block")
        return num_rows, ends

    def _score(self, segment: Segment, begin: int) -> list[TokenLogprobs]:
        scores: list[TokenLogprobs] = []
        for first in range(0, len(segment.targets), self.num_slots):
            targets = segment.targets[first : first + self.num_slots]
            logits = self.logits(range(begin + first, begin + first + len(targets)))
            scores += self._sampler.score(logits, targets, segment.num_logprobs)
        return scores


def _check_below(numbers: Words, limit: int, name: str) -> None:
    # Seen as unsigned, what is negative is larger than any limit.
    if len(numbers) and numbers.view(np.uint64).max() >= limit:
        worst = numbers[numbers.view(np.uint64).argmax()]
        raise ValueError(f"{name} {worst} does not exist; valid are 0 to {limit - 1}")


class _ParallelCall:
    """A kernel that the threads of a pool run at once.

    Args:
        kernel: The function; takes `threads` and `step`.
        thread_pool: The threads.
        step: What they read and write.
    """

    def __init__(self, kernel: Kernel, thread_pool: KernelThreadPool, step: Step):
        self._phases = aligned_bytes(8 * kernels.phase_words(step.shape.num_layers)).view(np.int64)
        self._calls: list[Call] = [
            kernel.prepare(Threads(thread, thread_pool.num_threads, self._phases), step)
            for thread in range(thread_pool.num_threads)
        ]
        self._run = thread_pool.run

    def run(self, num_threads: int, num_rows: int) -> None:
        """Run it in the first `num_threads` threads, for `num_rows` of the step's rows."""
        calls = self._calls[:num_threads]
        for call in calls:
            call.arguments.threads_count = num_threads
            call.arguments.step_num_rows = num_rows
        self._phases[:] = 0
        self._run(calls)
