"""Writing a model's card from the files of its folder, so that it says what they say."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shared.bpe import Tokenizer
from shared.chat import ChatTemplateError, read_templates
from shared.lm.config import ModelConfig
from shared.lm.hf_config import ARCHITECTURES
from shared.lm.json_file import read_json
from shared.lm.training_file import TRAINING_FILE
from shared.system.checksums import CARD_FILE, CURVES_FILE
from shared.system.regular_file import read_regular
from trainer.card.curves import loss_curves
from trainer.card.markdown import code, table, yaml_text
from trainer.card.training import origin_lines, results, training_lines
from trainer.card.usage import usage_lines

MARK = "<!-- Written by ownlm. Without this line, the file is kept when the model is written again. -->"
LARGEST_CARD = 1 << 20
"""Bytes."""


def write_model_card(folder: Path, config: ModelConfig, tokenizer: Tokenizer, *, replaces: Path) -> None:
    """Write `README.md` and the picture in it; a card that a user has written or made their own stays.

    Args:
        folder: A model folder that is complete except for these files and the checksums, which do not cover them.
        config: The model's architecture.
        tokenizer: Its tokenizer.
        replaces: The folder whose place it takes.
    """
    curves = loss_curves(read_json(folder / TRAINING_FILE, optional=True).get("curves", {}))
    if curves is not None:
        (folder / CURVES_FILE).write_text(curves, encoding="utf-8")
    earlier = _own_card(replaces / CARD_FILE)
    text = model_card(folder, config, tokenizer) if earlier is None else earlier
    (folder / CARD_FILE).write_text(text, encoding="utf-8")


def model_card(folder: Path, config: ModelConfig, tokenizer: Tokenizer) -> str:
    """The text of a model's card."""
    provenance = read_json(folder / "ownlm.json", optional=True).get("training", {})
    record = read_json(folder / TRAINING_FILE, optional=True)
    parts = [
        *_front_matter(config, provenance, record),
        MARK,
        "",
        f"# A {_kind(config)} of {config.num_parameters:,} parameters",
        "",
        *origin_lines(provenance, record),
        *_model_lines(folder, config, tokenizer),
        *training_lines(record, picture=CURVES_FILE if (folder / CURVES_FILE).exists() else None),
        *usage_lines(config, record, chat=_has_template(folder)),
        "## License and limits",
        "",
        "The license is for the author of the model to choose: set `license` in the first lines of this file before "
        "you publish it. The model repeats what its text holds, errors and prejudice included, and states what is not "
        "true.",
    ]
    return "\n".join(parts) + "\n"


def _own_card(file: Path) -> str | None:
    """A card without our mark; None if there is none that can be kept."""
    try:
        text = read_regular(file, LARGEST_CARD).decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return None if MARK in text else text


def _has_template(folder: Path) -> bool:
    try:
        return read_templates(folder) is not None
    except ChatTemplateError:
        return False


def _front_matter(config: ModelConfig, provenance: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[str]:
    """The YAML that Hugging Face reads, see https://huggingface.co/docs/hub/model-cards."""
    yield "---"
    yield "license: unknown"
    yield f"library_name: {'ownlm' if config.research_features else 'transformers'}"
    yield "pipeline_tag: text-generation"
    yield f"tags: [ownlm, {config.family}]"
    parent = provenance.get("parent")
    if isinstance(parent, Mapping) and isinstance(parent.get("name"), str):
        yield f"base_model: {yaml_text(parent['name'])}"
    if figures := list(results(record)):
        name = ", ".join(source["name"] for source in record["data"]["validation"]["sources"][:3]) or "held-out text"
        metrics = [{"type": kind, "name": label, "value": value} for kind, label, value in figures]
        yield "model-index:"
        yield f"- name: {config.family}-{config.num_parameters}"
        yield "  results:"
        yield "  - task: {type: text-generation}"
        yield f"    dataset: {{type: text, name: {yaml_text(f'{name} (held-out part)')}}}"
        yield f"    metrics: {json.dumps(metrics)}"
    yield "---"


def _kind(config: ModelConfig) -> str:
    return "research model" if config.research_features else f"{config.family.capitalize()}-shaped language model"


def _model_lines(folder: Path, config: ModelConfig, tokenizer: Tokenizer) -> Iterator[str]:
    dtype = read_json(folder / "config.json").get("dtype", "unknown")
    heads = f"{config.num_heads} of {config.head_dim} channels"
    if config.num_kv_heads != config.num_heads:
        heads += f", {config.num_kv_heads} of keys and values"
    special = ", ".join(map(code, tokenizer.special_tokens)) or "none"
    scaling = "" if config.rope.scaling is None else f", scaled ({type(config.rope.scaling).__name__})"
    rows = [
        ("architecture", code(ARCHITECTURES[config.family])),
        ("parameters", f"{config.num_parameters:,} in {dtype}"),
        ("layers, width, feed-forward width", f"{config.num_layers}, {config.d_model:,}, {config.d_ff:,}"),
        ("heads", heads),
        ("context", f"{config.context_length:,} tokens"),
        ("positions", "none" if config.position == "none" else f"RoPE, base {config.rope.theta:g}{scaling}"),
        ("embedding and output", "one matrix" if config.tie_embeddings else "two matrices"),
        ("vocabulary", f"{len(tokenizer):,} tokens of byte-level BPE"),
        ("special tokens", special),
        ("tokenizer's fingerprint", code(tokenizer.fingerprint[:16])),
    ]
    if config.research_features:
        rows.append(("differs from Llama by", ", ".join(config.research_features)))
    yield from ("## Model", "", *table(("", ""), rows), "")
