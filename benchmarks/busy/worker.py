"""One kind of work in a process: `... WORK FOLDER` prints a rate for each number of seconds that it reads."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.busy.inputs import BATCH, CONTEXT, Inputs

_NEVER_ENDING = 1_000_000
_ROWS, _POSITION = 8, 100

Unit = Callable[[], tuple[int, float]]
"""Does a unit of work; returns how much it was, and the seconds that count."""


def _timed(amount: int, work: Callable[[], object]) -> tuple[int, float]:
    begin = time.perf_counter()
    work()
    return amount, time.perf_counter() - begin


def training(inputs: Inputs) -> Unit:
    """Steps of a training run; counts tokens."""
    from trainer.compute.threads import prepare_threads
    from trainer.training.loop import training_steps
    from trainer.training.run import prepare_run
    from trainer.training.trainer import Trainer

    prepare_threads(None)
    trainer = Trainer(prepare_run(inputs.training(_NEVER_ENDING + os.getpid())))
    steps = training_steps(
        trainer.model,
        trainer.optimizer,
        trainer.run.windows,
        trainer.settings,
        trainer.run.device,
        state=trainer.state,
        loss_function=trainer.loss_function,
    )
    return lambda: _timed(BATCH * CONTEXT, lambda: next(steps))


def evaluating(inputs: Inputs) -> Unit:
    """What `evaluate` does, by its own measure; counts tokens."""
    from trainer.console.progress import progress
    from trainer.evaluation.evaluate import evaluate_inputs
    from trainer.settings.evaluation import EvaluateSettings

    def unit() -> tuple[int, float]:
        with progress() as new_bar:
            report = evaluate_inputs(inputs.model, [inputs.part], EvaluateSettings(), new_bar)
        return report.total.evaluation.tokens, report.seconds

    return unit


def serving(inputs: Inputs) -> Unit:
    """Steps of the engine at 8 rows, without HTTP; counts tokens."""
    from services.inference.engine.ipc import EngineConfig
    from services.inference.engine.runner.protocol import Segment
    from services.inference.engine.types import SequenceRequest
    from services.inference.engine.worker.model_loader import load_model
    from shared.lm import SamplingParams

    runner = load_model(EngineConfig(inputs.model, device="cpu", max_batch=_ROWS)).runner
    blocks_each = runner.num_blocks // _ROWS
    segments = []
    for row in range(_ROWS):
        runner.open_slot(row, SequenceRequest((0,), SamplingParams(seed=row), CONTEXT, frozenset()))
        blocks = list(range(row * blocks_each, (row + 1) * blocks_each))
        segments.append(Segment([0], _POSITION, blocks, sample_slots=[row]))
    return lambda: _timed(_ROWS, lambda: runner.run(segments))


def encoding(inputs: Inputs) -> Unit:
    """Documents to ids on all processors; counts bytes."""
    from shared.bpe import Tokenizer

    tokenizer = Tokenizer.from_files(inputs.tokenizer)
    text = inputs.text.read_text(encoding="utf-8")
    documents = text.split("<|endoftext|>")
    return lambda: _timed(len(text), lambda: tokenizer.encode_batch_to_numpy(documents))


WORK = {work.__name__: work for work in (training, evaluating, serving, encoding)}


def main(name: str, folder: str) -> None:
    """Prepare the work, and do it for as long as each line says."""
    answers = os.fdopen(os.dup(1), "w")  # what libraries print goes elsewhere
    os.dup2(2, 1)
    unit = WORK[name](Inputs(Path(folder)))
    unit()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        end = time.monotonic() + float(line)
        amount = seconds = 0.0
        while not seconds or time.monotonic() < end:
            done, taken = unit()
            amount += done
            seconds += taken
        print(amount / seconds, file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
