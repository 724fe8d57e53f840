"""The page for students of CS336: what it names exists, what it says of conventions holds, its figures are printed."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shared.bpe import Tokenizer, train_bpe
from shared.lm import Transformer
from shared.lm.rope import rotate
from tests.docs.pages import DOCS, ROOT, examples
from trainer.components.model import model_config
from trainer.settings.model import ModelSettings
from trainer.tokens.encode import encode_files
from trainer.tokens.token_file import TokenFile

PAGE = DOCS / "how-to" / "coming-from-cs336.md"
END = "<|endoftext|>"
TEXT = PAGE.read_text(encoding="utf-8")

# The handout of 2025, version 1.0.x, in its order.
EXERCISES = [
    "unicode1",
    "unicode2",
    "train_bpe",
    "train_bpe_tinystories",
    "train_bpe_expts_owt",
    "tokenizer",
    "tokenizer_experiments",
    "linear",
    "embedding",
    "rmsnorm",
    "positionwise_feedforward",
    "rope",
    "softmax",
    "scaled_dot_product_attention",
    "multihead_self_attention",
    "transformer_block",
    "transformer_lm",
    "transformer_accounting",
    "cross_entropy",
    "learning_rate_tuning",
    "adamw",
    "adamwAccounting",
    "learning_rate_schedule",
    "gradient_clipping",
    "data_loading",
    "checkpointing",
    "training_together",
    "decoding",
    "experiment_log",
    "learning_rate",
    "batch_size_experiment",
    "generate",
    "layer_norm_ablation",
    "pre_norm_ablation",
    "no_pos_emb",
    "swiglu_ablation",
    "main_experiment",
    "leaderboard",
]

# What is printed on the reference data, by a part of the command; of several parts in a command, the last counts.
PRINTED = {
    "vocab stories.txt": [" accomplishment"],
    "stories --tokenizer tokenizers/web": ["4.08", "3.17", "4,855", "9,743"],
    "--sample 10": ["4.197", "3.283"],
    "encode stories.txt": ["3,279,579", "29,573"],
    "--compare gpt2": ["2,127,057,600", "4,513,336,524,800", "66.9%"],
    "--sequence-length 16384": ["149,522,795,724,800", "55.2%"],
    "examples.sgd_toy": ["12 %", "10^18 times as high"],
    "a100-80g": ["14.45*B + 31.70 GiB", "so B = 3", "29,778,806,400", "18.0 years"],
    "schedule": ["0.142857", "0.988718", "0.55", "0.111282"],
}


def rows(section: str) -> list[list[str]]:
    """The cells of the rows below the heading of a section's first table."""
    table = re.search(rf"^## {section}\n.*?^\|(?: --- \|)+\n(.*?)^$", TEXT, re.MULTILINE | re.DOTALL)
    assert table is not None
    return [re.split(r" ?(?<!\\)\| ?", line)[1:-1] for line in table[1].splitlines()]


def definitions(path: Path) -> set[str]:
    """The functions, classes, methods (as Class.method) and values that a file defines."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            parts = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
            found |= {node.name, *(f"{node.name}.{part}" for part in parts)}
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_each_exercise_is_listed_once_in_the_order_of_the_handout() -> None:
    assert re.findall(r"`(\w+)`", " ".join(row[0] for row in rows("Where each exercise lives"))) == EXERCISES


@pytest.mark.parametrize("row", rows("Where each exercise lives"), ids=lambda row: row[0])
def test_each_place_exists(row: list[str]) -> None:
    _, here, test = row
    for cell, is_test in ((here, False), (test, True)):
        places = re.findall(r"\[`([\w.]+)`\]\(\.\./\.\./([\w/.]+)\)", cell)
        assert cell == ", ".join(f"[`{name}`](../../{path})" for name, path in places)
        for name, path in places:
            assert path.startswith("tests/") == is_test
            assert name in definitions(ROOT / path), path


def test_rows_of_an_interleaved_projection_become_halves() -> None:
    """Scores of queries and keys rotated in pairs of neighbors, by the page's line and our rotation."""
    bridge = re.search(r"`(w\.view\([^`]+)`", TEXT)
    assert bridge is not None
    heads, d_model, size, length = 3, 24, 8, 5
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(length, d_model, generator=generator, dtype=torch.float64)
    projections = [torch.randn(d_model, d_model, generator=generator, dtype=torch.float64) for _ in range(2)]
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, size, 2, dtype=torch.float64) / size)

    def interleaved(w: Tensor) -> Tensor:
        pairs = torch.view_as_complex((x @ w.T).view(length, heads, size // 2, 2).transpose(0, 1).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(2)

    def halves(w: Tensor) -> Tensor:
        ours = eval(bridge[1], {}, {"w": w, "heads": heads, "d_model": d_model})
        return rotate((x @ ours.T).view(1, length, heads, size).transpose(1, 2), angles.cos(), angles.sin())[0]

    theirs, ours = ([turn(w) for w in projections] for turn in (interleaved, halves))
    expected = theirs[0] @ theirs[1].transpose(1, 2)
    torch.testing.assert_close(ours[0] @ ours[1].transpose(1, 2), expected)
    plain = [(x @ w.T).view(1, length, heads, size).transpose(1, 2) for w in projections]
    unbridged = [rotate(part, angles.cos(), angles.sin())[0] for part in plain]
    assert not torch.allclose(unbridged[0] @ unbridged[1].transpose(1, 2), expected)


@pytest.mark.parametrize(("rest", "added"), [("\n\n", ""), ("\nthe end\n", END), ("", "")])
def test_documents_have_the_ids_of_the_assignment(tmp_path: Path, rest: str, added: str) -> None:
    text = f"the cat\n{END}\nthe dog sat\n{END}\n\nthe cat sat\n{END}{rest}"
    tokenizer = train_bpe([text], 280, special_tokens=[END]).tokenizer
    (tmp_path / "stories.txt").write_text(text, encoding="utf-8")
    encode_files([tmp_path / "stories.txt"], tokenizer, tmp_path / "ends")
    ids = TokenFile.open(tmp_path / "ends", "train").tokens
    np.testing.assert_array_equal(ids, tokenizer.encode(text + added, allowed_special="all"))


def test_weights_have_these_names() -> None:
    settings = ModelSettings(d_model=8, num_layers=1, num_heads=2, qk_norm=False, tie_embeddings=False)
    table = TEXT.split("Weights have Hugging Face's names:")[1].split("## ")[0]
    named = [name for line in table.splitlines()[4:] for name in re.findall(r"`([\w.]+)`", line.rpartition(" | ")[2])]
    full = {name if "." in name else f"model.layers.0.self_attn.{name}.weight" for name in named}
    assert full == set(Transformer(model_config(settings, 8)).state_dict())


def test_defaults_are_those_of_the_table() -> None:
    settings = ModelSettings(d_model=512, num_heads=16)
    assert (settings.rope_theta, settings.qk_norm, settings.tie_embeddings) == (100_000, True, True)
    assert settings.initialization == "mimetic"
    assert model_config(settings, 10_000).d_ff == 1_408


def run(command: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    arguments = [sys.executable, *shlex.split(command)[1:]]
    done = subprocess.run(arguments, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_all_reference_merges(data_dir: Path, tmp_path: Path) -> None:
    """By the page's own command, from the fixtures of the assignment's tests."""
    (tmp_path / "corpus.en").symlink_to(data_dir / "cs336/corpus.en")
    command = next(example.text for example in examples(PAGE) if "vocab corpus.en" in example.text)
    run(command, tmp_path)
    model = json.loads((tmp_path / "tokenizers/corpus/tokenizer.json").read_text(encoding="utf-8"))["model"]
    reference = (data_dir / "cs336/train-bpe-reference-merges.txt").read_text(encoding="utf-8").splitlines()
    assert [" ".join(pair) for pair in model["merges"]] == reference
    assert len(reference) == 243


@pytest.mark.slow
def test_the_figures_are_printed(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "stories.txt").symlink_to(data_dir / "tinystories_train.txt")
    (tmp_path / "web.txt").symlink_to(data_dir / "owt/owt_sample.txt")
    waiting = dict(PRINTED)
    for _, cell, _, here in rows("Experiments"):
        command = cell.strip("`")
        if re.search(r" (train|sweep|generate|report) | corpus\.en", command):
            continue
        printed = run(command, tmp_path)
        key = next((key for key in reversed(waiting) if key in command), None)
        for figure in waiting.pop(key) if key else []:
            assert figure in here
            assert figure in printed, command
    assert not waiting
    tokens = Tokenizer.from_files(tmp_path / "tokenizers/web").vocabulary.tokens.values()
    assert max(tokens, key=len) == b"-" * 64
