"""All steps from an empty folder to a trained model, on the embedded stories."""

import dataclasses
import logging
import shutil
from pathlib import Path

from shared.bpe import Tokenizer
from shared.lm import ModelFolderError, load_model_folder
from trainer.checkpoints.folders import has_intact_checkpoint
from trainer.console.program import PROGRAM
from trainer.console.progress import NewBar, progress
from trainer.demo import recipe
from trainer.demo.corpus import write_corpus
from trainer.errors import TrainerError
from trainer.runs.folder import RunFolder
from trainer.settings.encode import EncodeSettings
from trainer.settings.train import TrainSettings
from trainer.settings.vocab import VocabSettings
from trainer.tokenizer.train import train_tokenizer
from trainer.tokens.encode import encode_files
from trainer.training.trainer import train

logger = logging.getLogger(__name__)


def make_demo(output: Path, *, keep: bool = False) -> None:
    """Write stories, learn a vocabulary, encode, train, and move the model to `output`.

    Intermediate files are in a folder beside it, OUTPUT.work; the finished model appears in `output` in one step.
    Called again, it continues where it was interrupted; if `output` already is a model folder, it does nothing.

    Args:
        output: The model's folder.
        keep: Whether to keep OUTPUT.work: the stories, the tokens and the training run.

    Raises:
        TrainerError: `output` is not empty and not a model folder.
        InterruptedRunError: SIGINT, SIGTERM or SIGHUP was received during training; a checkpoint was saved.
    """
    if has_model(output):
        logger.info("%s already contains a model; nothing to do", output)
        return
    work = work_folder(output)
    corpus, tokenizer, tokens, run = (work / name for name in ("stories.txt", "tokenizer", "tokens", "run"))
    with progress() as new_bar:
        _prepare(corpus, tokenizer, tokens, new_bar)
    publish(train_to_the_end(recipe.training_settings(tokens, run)), output, work, keep=keep)
    logger.info('done; try: %s generate %s "%s"', PROGRAM, output, recipe.SAMPLE_PROMPT)


def has_model(output: Path) -> bool:
    """Whether a model's folder is finished.

    Raises:
        TrainerError: it is not empty and not a model folder.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return False
    try:
        load_model_folder(output)
    except ModelFolderError as error:
        raise TrainerError(f"{output} exists and is not a model folder: {error}") from error
    return True


def work_folder(output: Path) -> Path:
    """The folder of the intermediate files, which is made where it is missing."""
    work = output.with_name(f"{output.name}.work")
    work.mkdir(parents=True, exist_ok=True)
    return work


def train_to_the_end(settings: TrainSettings) -> Path:
    """Train, from the newest intact checkpoint where there is one; gives the model's folder."""
    resume = has_intact_checkpoint(RunFolder(settings.output).checkpoints)
    checkpoints = dataclasses.replace(settings.checkpoints, resume=resume, overwrite=not resume)
    return train(dataclasses.replace(settings, checkpoints=checkpoints))


def publish(model: Path, output: Path, work: Path, *, keep: bool) -> None:
    """Move a finished model to its place, and remove the intermediate files unless they are to be kept."""
    if output.exists():
        output.rmdir()  # empty, see `has_model`
    model.rename(output)
    if not keep:
        shutil.rmtree(work)


def _prepare(corpus: Path, tokenizer: Path, tokens: Path, new_bar: NewBar) -> None:
    """Run the steps whose result is missing; a result is complete or absent."""
    if not corpus.exists():
        write_corpus(corpus, size_bytes=recipe.CORPUS_BYTES, progress=new_bar("writing stories", recipe.CORPUS_BYTES))
    if not (tokenizer / "tokenizer_config.json").exists():
        train_tokenizer(
            [corpus],
            tokenizer,
            VocabSettings(vocab_size=recipe.VOCAB_SIZE, overwrite=True),
            progress=new_bar("learning a vocabulary", corpus.stat().st_size),
        )
    if not (tokens / "val.json").exists():
        encode_files(
            [corpus],
            Tokenizer.from_files(tokenizer),
            tokens,
            EncodeSettings(val_fraction=recipe.VALIDATION_FRACTION, overwrite=True),
            progress=new_bar("encoding", corpus.stat().st_size),
        )
