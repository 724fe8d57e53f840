"""From the demo's model to one that answers questions about its stories."""

import logging
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

import orjson
import torch

from shared.chat import DEFAULT_SPECIAL_TOKENS
from shared.lm import load_model_folder
from shared.lm.json_file import read_json
from shared.system.files import to_json, write_bytes, write_text
from trainer.components.parent import Parent, read_parent, starting_from
from trainer.console.progress import NewBar, progress
from trainer.conversations.template import ChosenTemplate, choose_template
from trainer.demo import recipe
from trainer.demo.accuracy import Accuracy, Answerer, measure
from trainer.demo.pipeline import has_model, make_demo, publish, train_to_the_end, work_folder
from trainer.demo.questions import Conversation, conversations, majority_accuracy, messages_of
from trainer.settings.encode import TRAIN, VALIDATION, EncodeSettings
from trainer.tokens.encode import encode_files

logger = logging.getLogger(__name__)

RECORD = "answers.json"
"""In the model's folder: how many held-out questions were answered right, before and after."""

_TRAINING_SEED, _HELD_OUT_SEED = 1, 2


def make_chat_demo(demo: Path, *, keep: bool = False) -> None:
    """Train the demo's model to answer questions about stories, and write it to DEMO-chat.

    Questions about stories that are held out are asked before and after. Intermediate files are in DEMO-chat.work.
    Called again, it continues where it was interrupted; what is finished is used as it is.

    Args:
        demo: The folder of the demo's model, which is made where it is missing.
        keep: Whether to keep intermediate files.

    Raises:
        TrainerError: A folder is not empty and not a model folder.
        InterruptedRunError: SIGINT, SIGTERM or SIGHUP was received during training; a checkpoint was saved.
    """
    make_demo(demo, keep=keep)
    output = demo.absolute().with_name(f"{demo.absolute().name}-chat")  # "." has no name
    if has_model(output):
        logger.info("%s already contains a model; nothing to do", output)
        return
    work = work_folder(output)
    parent = read_parent(demo, DEFAULT_SPECIAL_TOKENS, extend_context=recipe.CHAT_CONTEXT)
    template = choose_template(None, demo, parent.tokenizer)
    training = [*islice(conversations(_TRAINING_SEED, held_out=False), recipe.CONVERSATIONS)]
    asked = [*islice(conversations(_HELD_OUT_SEED, held_out=True), recipe.HELD_OUT_STORIES)]
    before = _ask_parent(parent, template, asked, work / "before.json")
    with progress() as new_bar:
        tokens = _encode(work, {TRAIN: training, VALIDATION: asked}, parent, template, new_bar)
    settings = starting_from(
        recipe.chat_settings(tokens, work / "run"), demo, DEFAULT_SPECIAL_TOKENS, extend_context=recipe.CHAT_CONTEXT
    )
    model = train_to_the_end(settings)
    after = _ask_folder(model, template, asked)
    guess = majority_accuracy(chain.from_iterable(training), [first for first, *_ in asked])
    logger.info("always giving the most frequent answer to a question, %.1f %% would be right", 100 * guess)
    record = {"questions": len(asked), "most_frequent_answer": guess, "before": before, "after": after}
    write_text(model / RECORD, to_json(record))
    publish(model, output, work, keep=keep)
    logger.info("done; MODEL=%s make up serves it, with a page for conversations at /chat", output)


def _ask_parent(parent: Parent, template: ChosenTemplate, asked: Sequence[Conversation], known: Path) -> Accuracy:
    """How many of the held-out questions the model answers before it is trained to.

    That is read from the file `known` where an earlier start has written it.
    """
    if known.exists():
        return Accuracy(**read_json(known))
    model, _ = parent.load_model()
    valid_tokens = torch.arange(parent.config.vocab_size) < parent.tokenizer.vocab_size
    with Answerer(model, parent.tokenizer, valid_tokens, template.file) as answerer:
        accuracy = _ask(answerer, asked, "before")
    write_text(known, to_json(accuracy))
    return accuracy


def _ask_folder(path: Path, template: ChosenTemplate, asked: Sequence[Conversation]) -> Accuracy:
    folder = load_model_folder(path)
    with Answerer(folder.model, folder.tokenizer, folder.valid_tokens, template.file) as answerer:
        return _ask(answerer, asked, "after")


def _ask(answerer: Answerer, asked: Sequence[Conversation], when: str) -> Accuracy:
    with progress() as new_bar:
        accuracy = measure(answerer, asked, new_bar(f"asking {when} training", len(asked)))
    kinds = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in accuracy.kinds.items())
    logger.info(
        "%s training, %.1f %% of %d held-out questions are answered right (%s); %.1f %% of the answers have the fact; "
        "%.1f %% of the conversations have a second right answer",
        when, 100 * accuracy.exact, len(asked), kinds, 100 * accuracy.fact, 100 * accuracy.both,
    )  # fmt: skip
    return accuracy


def _encode(
    work: Path, splits: Mapping[str, Sequence[Conversation]], parent: Parent, template: ChosenTemplate, new_bar: NewBar
) -> Path:
    """Write conversations and their token files, where those are missing; gives the folder of these."""
    tokens = work / "tokens"
    for split, asked in splits.items():
        if (tokens / f"{split}.json").exists():
            continue
        file = work / f"{split}.jsonl"
        write_bytes(file, b"".join(orjson.dumps(messages_of(each)) + b"\n" for each in asked))
        length = parent.config.context_length
        settings = EncodeSettings(chat=True, context_length=length, too_long="cut", split=split, overwrite=True)
        bar = new_bar(f"encoding {split}", file.stat().st_size)
        encode_files([file], parent.tokenizer, tokens, settings, template=template, progress=bar)
    return tokens
