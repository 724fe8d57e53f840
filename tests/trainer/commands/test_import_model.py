"""`import`: state dicts of CS336's assignment become model folders, or are refused by name."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from shared.bpe import train_bpe
from shared.lm import load_model_folder
from trainer.commands.import_model import ImportSettings, import_model
from trainer.errors import TrainerError, UsageError

WIDTH, HEADS, LAYERS, FEED_FORWARD, VOCABULARY, CONTEXT = 32, 4, 2, 48, 320, 40
THETA = 10_000.0


class Assignment(nn.Module):
    """The assignment's model, as its handout describes it, with modules by its names. In float64."""

    def __init__(self) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        def layer() -> nn.ModuleDict:
            attention = {f"{name}_proj": linear(WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
            gates = {"w1": linear(WIDTH, FEED_FORWARD), "w2": linear(FEED_FORWARD, WIDTH)}
            return nn.ModuleDict(
                {
                    "attn": nn.ModuleDict(attention),
                    "ffn": nn.ModuleDict({**gates, "w3": linear(WIDTH, FEED_FORWARD)}),
                    "ln1": nn.RMSNorm(WIDTH, eps=1e-5),
                    "ln2": nn.RMSNorm(WIDTH, eps=1e-5),
                }
            )

        self.token_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(layer() for _ in range(LAYERS))
        self.ln_final = nn.RMSNorm(WIDTH, eps=1e-5)
        self.lm_head = linear(WIDTH, VOCABULARY)
        for norm in self.modules():
            if isinstance(norm, nn.RMSNorm):
                nn.init.uniform_(norm.weight, 0.5, 1.5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embeddings(ids)
        for layer in self.layers:
            attn, ffn = layer["attn"], layer["ffn"]  # type: ignore[index]
            normed = layer["ln1"](x)  # type: ignore[index]
            q, k, v = (attn[f"{name}_proj"](normed).view(len(ids), HEADS, -1).transpose(0, 1) for name in "qkv")
            mixed = nn.functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
            x = x + attn["output_proj"](mixed.transpose(0, 1).reshape(len(ids), WIDTH))
            normed = layer["ln2"](x)  # type: ignore[index]
            x = x + ffn["w2"](nn.functional.silu(ffn["w1"](normed)) * ffn["w3"](normed))
        logits: Tensor = self.lm_head(self.ln_final(x))
        return logits


def rotate(x: Tensor) -> Tensor:
    """Pairs of neighboring channels as complex numbers."""
    size = x.shape[-1]
    turns = torch.outer(torch.arange(x.shape[1]), THETA ** -(torch.arange(0, size, 2) / size))
    rotated = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous()) * torch.polar(
        torch.ones_like(turns), turns
    )
    return torch.view_as_real(rotated).reshape(x.shape)


@pytest.fixture(scope="module")
def assignment() -> Assignment:
    torch.manual_seed(0)
    return Assignment()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_bpe(["Once upon a time there was a fox."] * 3, 280, special_tokens=["<|endoftext|>"]).tokenizer.save(folder)
    return folder


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "trainer", "import", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def settings(tokenizer: Path, **changes: Any) -> ImportSettings:
    return ImportSettings(**{"tokenizer": tokenizer, "num_heads": HEADS, "context_length": CONTEXT, **changes})


def checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    return {"model": state, "optimizer": {"state": {}, "param_groups": [{"lr": 1e-3}]}, "iteration": 7}


@pytest.mark.parametrize("kind", ["state dict", "checkpoint", "safetensors", "wrapped", "bfloat16", "with tables"])
def test_the_model_computes_the_same(
    assignment: Assignment, tokenizer: Path, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    state: dict[str, Any] = dict(assignment.state_dict())
    source, limit = tmp_path / "model.pt", 1e-5
    chosen = settings(tokenizer, strip_wrappers=kind == "wrapped")
    if kind == "wrapped":
        state = {f"_orig_mod.module.{name}": value for name, value in state.items()}
    if kind == "bfloat16":
        state, limit = {name: value.bfloat16() for name, value in state.items()}, 0.05
    if kind == "with tables":
        state |= {"layers.0.attn.rope.cos_cached": torch.ones(3), "layers.1.attn.causal_mask": torch.ones(2, 2)}
    if kind == "safetensors":
        source = tmp_path / "model.safetensors"
        save_file({name: value.contiguous() for name, value in state.items()}, source)
    else:
        torch.save(checkpoint(state) if kind in ("checkpoint", "wrapped") else state, source)
    with caplog.at_level("INFO"):
        import_model(source, tmp_path / "out", settings=chosen)
    assert ("left out 2 tables" in caplog.text) == (kind == "with tables")
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, VOCABULARY, CONTEXT))
    with torch.no_grad():
        found = load_model_folder(tmp_path / "out").model(ids[None])[0]
        expected = assignment(ids)
    assert (found - expected).abs().max() < limit * expected.abs().max()


def test_what_cannot_be_imported_is_named(assignment: Assignment, tokenizer: Path, tmp_path: Path) -> None:
    state = dict(assignment.state_dict())
    source, out = tmp_path / "model.pt", tmp_path / "out"

    def refused(content: Any, reason: str, error: type[TrainerError] = TrainerError, **changes: Any) -> None:
        torch.save(content, source)
        with pytest.raises(error, match=re.escape(reason)):
            import_model(source, out, settings=settings(tokenizer, **changes))
        assert not out.exists()

    refused({**state, "layers.0.attn.gate.weight": torch.ones(2)}, "layers.0.attn.gate.weight, which")
    refused({**state, "ln_final.weight": torch.ones(2)}, "ln_final.weight has the shape [2], expected [32]")
    refused({name: v for name, v in state.items() if "layers.1.ln2" not in name}, "lacks layers.1.ln2.weight")
    refused({"a": 1}, "holds no state dict")
    refused([1], "holds a list")
    refused({"model": {"weight": torch.ones(2)}}, "the state dict holds weight")
    refused({f"module.{name}": value for name, value in state.items()}, "--strip-wrappers", UsageError)
    refused(state, "does not divide the model's width", UsageError, num_heads=5)
    refused(state, "head_dim must be even", UsageError, num_heads=WIDTH)
    refused({**state, "lm_head.weight": torch.full((VOCABULARY, WIDTH), float("nan"))}, "logits differ")
    refused({**state, "trap": Path("x")}, "not a file of torch.save with tensors only")
    source.write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(TrainerError, match="or damaged"):
        import_model(source, out, settings=settings(tokenizer))


@pytest.mark.extended
def test_the_command(assignment: Assignment, tokenizer: Path, tmp_path: Path) -> None:
    torch.save(assignment.state_dict(), tmp_path / "model.pt")
    options = ("--tokenizer", tokenizer, "--num-heads", HEADS, "--context-length", CONTEXT)
    done = run(tmp_path / "model.pt", tmp_path / "out", *options)
    assert (done.returncode, "equal the format's own definition" in done.stderr) == (0, True), done.stderr
    again = run(tmp_path / "none.pt", tmp_path / "other", *options)
    assert (again.returncode, "Traceback" in again.stderr, "none.pt" in again.stderr) == (1, False, True)
    with pytest.raises(TrainerError, match="out: already exists"):
        import_model(tmp_path / "model.pt", tmp_path / "out", settings=settings(tokenizer))
