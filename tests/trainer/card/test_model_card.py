"""The model card: what Hugging Face's own parser reads from it, what it says, and when it is kept."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from huggingface_hub import ModelCard

from shared.bpe import train_bpe
from shared.lm import GenerationDefaults, ModelConfig, Transformer, load_model_folder, save_model_folder
from trainer.card.curves import loss_curves
from trainer.card.markdown import block, code, yaml_text
from trainer.card.model_card import MARK, write_model_card

SMALL = ModelConfig(
    vocab_size=300, context_length=64, d_model=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, d_ff=48
)
TOKENIZER = train_bpe(["Once upon a time"], 270, special_tokens=["<|endoftext|>"]).tokenizer
SVG = "{http://www.w3.org/2000/svg}"
STRANGE = '`a|b`\n"c": — \x1b[31m\u2028\U0001f98a\ud83e.txt'


def record(**changes: Any) -> dict[str, Any]:
    """A training.json as `training_file` writes it."""
    part = {"tokens": 1_000, "documents": 7, "bytes": 3_000, "num_sources": 1}
    source = {"name": "stories.txt", "bytes": 4_000, "documents": 8}
    steps = list(range(10, 260, 10))
    return {
        "steps": 250, "tokens": 10_000, "seconds": 42.0, "loss": 2.5, "validation_loss": 2.25, "bits_per_byte": 0.75,
        "machine": {"device": "cpu (2 threads), float32", "processes": 1},
        "data": {"training": part | {"sources": [source]}, "validation": part | {"sources": [source]}},
        "settings": {"learning_rate": 0.002, "betas": [0.9, 0.99], "warmup_steps": 8},
        "sample_prompt": "Once", "samples": [{"step": 250, "text": "Once ```` there"}],
        "curves": {
            "loss": {"steps": [5, *steps], "values": [4.0, *(3.0 for _ in steps)]},
            "validation_loss": {"steps": steps, "values": [None, *(step / 100 for step in steps[1:])]},
        },
    } | changes  # fmt: skip


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(
        config: ModelConfig = SMALL,
        provenance: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        template: str | None = None,
    ) -> Path:
        path = tmp_path / "model"

        def describe(folder: Path) -> None:
            if training is not None:
                (folder / "training.json").write_text(json.dumps(training))
            if template is not None:
                (folder / "chat_template.jinja").write_text(template)
            write_model_card(folder, config, TOKENIZER, replaces=path)

        torch.manual_seed(0)
        eos = TOKENIZER.special_tokens["<|endoftext|>"]
        save_model_folder(
            path,
            model=Transformer(config),
            tokenizer=TOKENIZER,
            generation=GenerationDefaults(eos_token_ids=(eos,)),
            provenance=provenance or {},
            extra_files=describe,
            overwrite=True,
        )
        return path

    return write


def test_hugging_face_reads_the_front_matter(write: Write) -> None:
    card = ModelCard.load(write(training=record()) / "README.md")
    data = card.data.to_dict()
    assert {name: data[name] for name in ("license", "library_name", "pipeline_tag", "tags")} == {
        "license": "unknown",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["ownlm", "llama"],
    }
    assert [(r.dataset_name, r.metric_type, r.metric_value) for r in card.data.eval_results or ()] == [
        ("stories.txt (held-out part)", "loss", 2.25),
        ("stories.txt (held-out part)", "bits_per_byte", 0.75),
    ]


def test_it_says_what_the_folder_says(write: Write) -> None:
    text = (write(training=record()) / "README.md").read_text()
    assert f"A Llama-shaped language model of {SMALL.num_parameters:,} parameters" in text
    assert "| layers, width, feed-forward width | 1, 32, 48 |" in text
    assert r"| special tokens | `<\|endoftext\|>` |" in text
    assert "| training | 1,000 | 7 | 3,000 |" in text
    assert "250 steps, 10,000 tokens, 42 seconds on 1 × cpu (2 threads), float32." in text
    assert "| betas | `0.9, 0.99` |" in text
    rows = re.findall(r"^\| (\d+) \| ([\d.]*) \| ([\d.]*) \|", text, re.MULTILINE)
    assert [int(step) for step, _, _ in rows] == [20, 50, 70, 100, 120, 150, 170, 200, 220, 250]
    assert rows[0] == ("20", f"{(4 + 3 + 3) / 3:.4f}", "0.2000")
    assert "`````text\nOnce ```` there\n`````" in text  # a fence that the sample cannot end


def test_where_it_comes_from(write: Write) -> None:
    parent = {"name": "SmolLM2-135M", "weights_sha256": {"model.safetensors": "ab12"}}
    path = write(provenance={"parent": parent}, training=record())
    assert ModelCard.load(path / "README.md").data.base_model == "SmolLM2-135M"
    text = (path / "README.md").read_text()
    assert "going on from `SmolLM2-135M`." in text
    assert "`ab12`" in text
    imported = {"file": "stories.bin", "format": "llama2.c, version 1", "check": "Its logits are equal"}
    text = (write(provenance={"imported": imported}) / "README.md").read_text()
    assert "Imported by ownlm from `stories.bin` (llama2.c, version 1).\nIts logits are equal.\n" in text
    assert "## Training" not in text


def test_a_research_model_is_not_offered_to_others(write: Write) -> None:
    path = write(replace(SMALL, norm="post"))
    text = (path / "README.md").read_text()
    assert "| differs from Llama by | post-norm |" in text
    assert "AutoModel" not in text
    assert "vllm" not in text
    assert ModelCard.load(path / "README.md").data.library_name == "ownlm"


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m['content'] }}{% endfor %}"])
def test_its_python_runs_in_transformers(
    write: Write, template: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(training=record(), template=template)
    text = (path / "README.md").read_text()
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert example is not None
    assert ("apply_chat_template" in example[1], "/v1/chat/completions" in text) == (template is not None,) * 2
    exec(example[1].replace("FOLDER", str(path)).replace("max_new_tokens=32", "max_new_tokens=2"), {})
    assert capsys.readouterr().out.startswith("Who are you?" if template else "Once")


def test_names_from_files_are_no_markup(write: Write) -> None:
    source = {"name": STRANGE, "bytes": 1, "documents": 1}
    part = {"tokens": 1, "documents": 1, "bytes": 1, "sources": [source], "num_sources": 12}
    strange = record(data={"training": part, "validation": part}, sample_prompt="a\nb", samples=[], machine=None)
    path = write(training=json.loads(json.dumps(strange).replace("\\ud83e.txt", "?.txt")))
    card = ModelCard.load(path / "README.md")
    assert card.data.eval_results is not None
    assert card.data.eval_results[0].dataset_name == STRANGE.replace("\ud83e", "?") + " (held-out part)"
    assert "\x1b" not in card.content
    assert "and 11 more" in card.content
    assert code("a`b``c") == "```a`b``c```"
    assert code("`a`") == "`` `a` ``"
    assert block("text", "~~~") == ["```text", "~~~", "```", ""]
    assert yaml_text("\x7f") == '"\\U0000007F"'


def test_a_card_of_ones_own_is_kept_and_may_be_edited(write: Write) -> None:
    path = write(training=record())
    card = path / "README.md"
    edited = card.read_text().replace("license: unknown", "license: mit")
    card.write_text(edited)
    load_model_folder(path)  # no checksum stands against it
    write(training=record())
    assert "license: unknown" in card.read_text()  # with our mark, it is written again
    own = edited.replace(MARK + "\n", "")
    card.write_text(own)
    write(training=record(steps=300))
    assert card.read_text() == own


def test_a_run_without_validation_and_without_points(write: Write) -> None:
    data = record()["data"] | {"validation": None}
    text = (write(training=record(data=data, curves={}, samples=[], validation_loss=None)) / "README.md").read_text()
    assert "model-index" not in text
    assert "| training loss, mean of the last tenth | 2.5 |" in text
    assert "validation" not in text


def test_a_picture_of_the_curves_is_beside_it(write: Write) -> None:
    """Its points are the record's, in the document's own coordinates; no checksum covers it."""
    folder = write(training=record())
    assert "![Training and validation loss by step](curves.svg)" in (folder / "README.md").read_text()
    root = ElementTree.parse(folder / "curves.svg").getroot()
    [plot] = root.findall(f"{SVG}svg")
    lines = {line.get("class"): line for line in plot}
    assert [*lines] == ["training single", "training", "validation"]
    assert len(lines["training single"].get("points", "").split()) == 26
    places = [tuple(map(float, place.split(","))) for place in lines["validation"].get("points", "").split()]
    assert len(places) == 24, "except for the one that is not finite"
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairwise(places)]
    assert max(slopes) < 0, "the losses rise by the step, so on the picture they fall from the lower edge"
    assert max(slopes) - min(slopes) < 0.02
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"0", "50", "250", "step", "nats per token", "training", "validation"} <= {*texts}
    (folder / "curves.svg").unlink()
    load_model_folder(folder)
    no_points = write(training=record(curves={}))
    assert not (no_points / "curves.svg").exists()
    assert "curves.svg" not in (no_points / "README.md").read_text()


@pytest.mark.parametrize(
    ("loss", "validation"),
    [
        ({1: 2.0, 2: 2.0}, {}),
        ({10: 3.0}, {5: 0.0}),
        ({0: 1e30, 1: -1e30, 1_000_000_000: 4e-9}, {}),
        ({}, {7: 1.5, 14: 1.25}),
        ({step: 1 / step for step in range(1, 401)}, {400: 0.003}),
    ],
)
def test_any_curve_becomes_a_picture_within_its_frame(loss: dict[int, float], validation: dict[int, float]) -> None:
    curves = {
        name: {"steps": [*values], "values": [*values.values()]}
        for name, values in (("loss", loss), ("validation_loss", validation))
    }
    document = loss_curves(curves)
    assert document is not None
    root = ElementTree.fromstring(document)
    texts = [text for text in root.iter(f"{SVG}text") if text.get("text-anchor") == "middle"]
    assert 2 <= len(texts) <= 10
    assert all(60 <= float(text.get("x", "")) <= 704 for text in texts)
    marks = [text for text in root.iter(f"{SVG}text") if text.get("dy")]
    assert 2 <= len(marks) <= 8
    assert all(36 <= float(mark.get("y", "")) <= 296 for mark in marks)


def test_one_step_is_no_curve() -> None:
    assert loss_curves({"loss": {"steps": [1], "values": [2.0]}}) is None
    assert loss_curves({"loss": {"steps": [1, 2], "values": [2.0, None]}}) is None
