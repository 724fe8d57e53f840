"""A model folder's figures, against transformers' and lm-evaluation-harness's own loops on the same model."""

import gzip
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from shared.bpe import Tokenizer
from shared.bpe.training import TextFile
from shared.lm import (
    GenerationDefaults,
    ModelConfig,
    ModelFolderError,
    Transformer,
    load_model_folder,
    save_model_folder,
)
from trainer.compute.device import choose_device
from trainer.console.progress import progress
from trainer.errors import TrainerError, UsageError
from trainer.evaluation.documents import DocumentReader
from trainer.evaluation.evaluate import evaluate_inputs
from trainer.evaluation.sampling import stream_text
from trainer.evaluation.tables import to_json
from trainer.evaluation.validation import evaluate, token_byte_lengths
from trainer.settings.evaluation import EvaluateSettings, ReadingSettings, ScoringMachineSettings, ScoringSettings
from trainer.settings.vocab import VocabSettings
from trainer.text import sources
from trainer.text.memory import EncodingMemory
from trainer.text.utf8 import CorpusError
from trainer.tokenizer.train import train_tokenizer
from trainer.tokens.encode import encode_files
from trainer.tokens.token_file import TokenFile, TokenFileError

CONTEXT = 32
TEXT = "the old cat sees a naïve dog. the dog likes the red cat, and the cat likes the blue dog.\n"


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.from_files(tokenizer_folder)


@pytest.fixture(scope="module")
def model_folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose guesses are far from even."""
    torch.manual_seed(0)
    shape = {"d_model": 32, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "d_ff": 48}
    model = Transformer(ModelConfig(tokenizer.vocab_size, CONTEXT, **shape, initializer_range=0.3))
    folder = tmp_path_factory.mktemp("models") / "model"
    defaults = GenerationDefaults(eos_token_ids=(tokenizer.special_tokens["<|endoftext|>"],))
    save_model_folder(folder, model=model, tokenizer=tokenizer, generation=defaults, provenance={})
    return folder


@pytest.fixture(scope="module")
def losses_of_transformers(model_folder: Path) -> Callable[[list[int]], torch.Tensor]:
    """The nats of each id except the first, by transformers' model."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder)

    def losses(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1].double()
        return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")

    return losses


@pytest.fixture
def masked_model(model_folder: Path, tmp_path: Path) -> Path:
    """The same, as if it had been trained on documents that do not see each other."""
    folder = load_model_folder(model_folder)
    provenance = {"settings": {"document_mask": True}}
    save_model_folder(
        tmp_path / "masked",
        model=folder.model,
        tokenizer=folder.tokenizer,
        generation=folder.generation,
        provenance=provenance,
    )
    return tmp_path / "masked"


def run(
    model: Path, *inputs: Path, batch_size: int | None = None, dtype: str = "float32", **options: Any
) -> dict[str, Any]:
    """The JSON of an evaluation; options go to whichever group has them."""
    groups = [
        group(**{name: value for name, value in options.items() if name in group.__dataclass_fields__})
        for group in (ScoringSettings, ReadingSettings)
    ]
    machine = ScoringMachineSettings(device="cpu", batch_size=batch_size, dtype=dtype)
    settings = EvaluateSettings(scoring=groups[0], reading=groups[1], machine=machine)
    with progress() as new_bar:
        return to_json(evaluate_inputs(model, inputs, settings, new_bar))


@pytest.mark.parametrize("stride", [5, 16, CONTEXT])
def test_perplexity_is_that_of_transformers_loop(
    stride: int,
    model_folder: Path,
    tokenizer: Tokenizer,
    losses_of_transformers: Callable[[list[int]], torch.Tensor],
    tmp_path: Path,
) -> None:
    """The loop of transformers' page "Perplexity of fixed-length models"; its max_length counts the last target in."""
    (tmp_path / "text.txt").write_text(TEXT * 5)
    ids = tokenizer.encode(TEXT * 5)
    max_length = CONTEXT + 1
    nats, count, previous = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + max_length, len(ids))
        losses = losses_of_transformers(ids[begin:end])[-(end - previous) :]
        nats, count, previous = nats + losses.sum().item(), count + len(losses), end
        if end == len(ids):
            break
    total = run(model_folder, tmp_path / "text.txt", stride=stride, begin=False, no_separator=True)["total"]
    assert total["tokens"] == count == len(ids) - 1
    assert total["perplexity"] == pytest.approx(math.exp(nats / count), rel=1e-4)


def test_bits_per_byte_are_those_of_lm_evaluation_harness(
    model_folder: Path,
    tokenizer: Tokenizer,
    losses_of_transformers: Callable[[list[int]], torch.Tensor],
    tmp_path: Path,
) -> None:
    """`loglikelihood_rolling` with max_seq_len 20: windows as in its utils.get_rolling_token_windows."""
    documents = [TEXT * 3, "cat", TEXT, "the old dog."]
    lines = [json.dumps({"text": text}) for text in documents]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    nats = 0.0
    for text in documents:
        ids = tokenizer.encode(text)
        sequence = [tokenizer.end_of_text_id, *ids]
        scored = 0
        while scored < len(ids):
            count = min(20, len(ids) - scored)
            end = scored + count
            nats += losses_of_transformers(sequence[max(0, end - 20) : end + 1])[-count:].sum().item()
            scored = end
    size = sum(len(text.encode()) for text in documents)
    total = run(model_folder, tmp_path / "text.jsonl", window=20, last_window="full")["total"]
    assert (total["bytes"], total["documents"]) == (size, 4)
    assert total["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)


def test_packed_documents_give_the_figures_of_training(
    model_folder: Path, token_folder: Path, text_file: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = load_model_folder(model_folder)
    file = TokenFile.open(token_folder, "val")
    expected = evaluate(
        folder.model,
        file.blocks(300),
        token_byte_lengths(tokenizer, folder.valid_tokens),
        context_length=CONTEXT,
        batch_size=3,
        device=choose_device("cpu"),
        begin_id=file.manifest.end_of_text_id,
    )
    total = run(model_folder, token_folder / "val.json", documents="packed", max_tokens=300)["total"]
    assert total["tokens"] == expected.tokens == 300
    assert total["loss"] == pytest.approx(expected.loss, abs=1e-6)
    assert total["bits_per_byte"] == pytest.approx(expected.bits_per_byte, abs=1e-6)
    encode_files([text_file], tokenizer, tmp_path)
    of_tokens, of_text = (
        run(model_folder, path, documents="packed", max_tokens=2000)["total"]
        for path in (tmp_path / "train.json", text_file)
    )
    assert of_tokens == of_text


def test_masked_documents_are_as_good_as_apart(model_folder: Path, masked_model: Path, tmp_path: Path) -> None:
    """All of them fit into one window, so that none is cut."""
    (tmp_path / "text.txt").write_text("the cat<|endoftext|>a dog likes<|endoftext|>the dog<|endoftext|>")
    apart = run(model_folder, tmp_path / "text.txt")["total"]
    masked, also_masked, plain = (
        run(model, tmp_path / "text.txt", documents="packed", document_mask=mask)
        for model, mask in ((masked_model, None), (model_folder, True), (masked_model, False))
    )
    assert masked["document_mask"]
    assert masked["total"] == also_masked["total"]
    assert masked["total"]["tokens"] == apart["tokens"] + 3
    assert masked["total"]["bits_per_byte"] == pytest.approx(apart["bits_per_byte"], rel=1e-5)
    assert abs(plain["total"]["bits_per_byte"] - apart["bits_per_byte"]) > 1e-3


@pytest.mark.parametrize("documents", ["apart", "packed"])
def test_the_result_does_not_depend_on_the_batch_size(documents: str, model_folder: Path, tmp_path: Path) -> None:
    """B89."""
    texts = [TEXT * repeats for repeats in (1, 4, 2, 3)]
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(texts))
    totals = [
        run(model_folder, tmp_path / "text.txt", batch_size=size, documents=documents, stride=9)["total"]
        for size in (1, 3, 8, None)
    ]
    for total in totals[1:]:
        assert total == pytest.approx(totals[0], abs=1e-5, rel=1e-6)


def test_bfloat16_is_close(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT * 3)
    exact, rounded = (run(model_folder, tmp_path / "text.txt", dtype=name)["total"] for name in ("float32", "bfloat16"))
    assert rounded["tokens"] == exact["tokens"]
    assert rounded["loss"] == pytest.approx(exact["loss"], rel=0.02)
    assert rounded["loss"] != exact["loss"]


def test_sources_add_up_whatever_the_format(model_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    texts = [TEXT, TEXT + TEXT, "cat"]
    (folder / "a.txt").write_text("<|endoftext|>".join(texts))
    (folder / "b.txt.gz").write_bytes(gzip.compress("<|endoftext|>".join(texts).encode()))
    rows = [{"body": text, "kind": "short" if len(text) < 9 else 7} for text in texts]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parquet.write_table(pyarrow.table({"body": texts, "kind": ["long", "long", None]}), tmp_path / "d.parquet")
    inputs = [folder, tmp_path / "c.jsonl", tmp_path / "d.parquet"]
    by_input = run(model_folder, *inputs, text_field="body")
    assert [row["source"] for row in by_input["sources"]] == [*map(str, inputs)]
    one = run(model_folder, folder / "a.txt")["total"]
    assert one["documents"] == 3
    for row, times in zip(by_input["sources"], (2, 1, 1), strict=True):
        assert [row[name] for name in ("documents", "tokens", "bytes")] == [
            times * one[name] for name in ("documents", "tokens", "bytes")
        ]
        assert row["loss"] == pytest.approx(one["loss"], abs=1e-6)
    for name in ("documents", "tokens", "bytes", "nats"):
        assert by_input["total"][name] == pytest.approx(sum(row[name] for row in by_input["sources"]))
    by_file = run(model_folder, folder, by="file")
    assert [row["source"] for row in by_file["sources"]] == [str(folder / "a.txt"), str(folder / "b.txt.gz")]
    by_kind = run(model_folder, *inputs[1:], text_field="body", by="kind")
    assert {row["source"]: row["documents"] for row in by_kind["sources"]} == {"7": 2, "short": 1, "long": 2, "None": 1}


@pytest.mark.parametrize("separator", ["==", None])
@pytest.mark.parametrize("pattern", ["gpt2", r"\w+|\W"])
def test_a_text_in_blocks_is_the_text(
    pattern: str, separator: str | None, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents that go on from one block to the next, a separator that no tokenizer knows, none at the end."""
    monkeypatch.setattr(sources, "TextFile", lambda path: TextFile(path, 1000))
    train_tokenizer([text_file], tmp_path / "tokenizer", VocabSettings(vocab_size=280, pattern=pattern))
    tokenizer = Tokenizer.from_files(tmp_path / "tokenizer")
    text = f"=={TEXT * 100}=={TEXT}=="
    (tmp_path / "text.txt").write_text(text)
    reader = DocumentReader(tokenizer, separator, "text", "strict", EncodingMemory(None, 1), "input")
    [file] = reader.open([tmp_path / "text.txt"])
    documents: list[list[int]] = [[]]
    for part in file.read():
        documents[-1] += part.ids.tolist()
        if part.ends:
            documents.append([])
    assert documents == [*map(tokenizer.encode, text.split(separator)[:3] if separator else [text]), []]


@pytest.mark.case("D33")
@pytest.mark.parametrize("documents", ["apart", "packed"])
def test_white_space_behind_the_last_separator_is_no_document(
    documents: str, model_folder: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In text as in token files; every byte is scored all the same."""
    monkeypatch.setattr(sources, "TextFile", lambda path: TextFile(path, 100))
    text = f"{TEXT * 9}<|endoftext|>\n{TEXT}<|endoftext|>\n  \n"
    (tmp_path / "text.txt").write_text(text)
    encode_files([tmp_path / "text.txt"], tokenizer, tmp_path / "tokens")
    rows = [
        run(model_folder, tmp_path / name, documents=documents)["total"] for name in ("text.txt", "tokens/train.json")
    ]
    for row in rows:
        assert (row["documents"], row["bytes"]) == (2, len(text.replace("<|endoftext|>", "").encode()))
    assert rows[0]["nats"] == pytest.approx(rows[1]["nats"])
    assert rows[0]["tokens"] == rows[1]["tokens"]


def test_the_first_tokens_end_within_a_document(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"<|endoftext|>{TEXT}")
    total = run(model_folder, tmp_path / "text.txt", max_tokens=20)["total"]
    assert (total["documents"], total["tokens"]) == (1, 20)


@pytest.mark.parametrize("content", ["", "<|endoftext|>", "<|endoftext|><|endoftext|>"])
def test_no_token_is_an_error_in_words(content: str, model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(content)
    with pytest.raises(TrainerError, match=r"no token to score in .*empty\.txt"):
        run(model_folder, tmp_path / "empty.txt")


def test_one_token_is_scored_if_something_comes_before_it(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert run(model_folder, tmp_path / "a.txt")["total"]["tokens"] == 1
    with pytest.raises(TrainerError, match="the first token of each is not scored"):
        run(model_folder, tmp_path / "a.txt", begin=False)


def test_bytes_that_are_not_utf8(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"the cat \xff sees")
    with pytest.raises(CorpusError, match=r"bad.txt is not UTF-8: byte 0xff at offset 8"):
        run(model_folder, tmp_path / "bad.txt")
    total = run(model_folder, tmp_path / "bad.txt", errors="replace")["total"]
    assert total["bytes"] == len("the cat \ufffd sees".encode())


def test_tokens_of_another_tokenizer_and_ids_beyond_the_vocabulary_are_refused(
    model_folder: Path, token_folder: Path, tmp_path: Path
) -> None:
    """B79."""
    manifest = json.loads((token_folder / "val.json").read_text())
    for name, change, message in [
        ("other", {"fingerprint": "0" * 64}, "was made with another tokenizer"),
        ("beyond", {"vocab_size": 259}, "beyond a vocabulary of 259"),
    ]:
        (tmp_path / f"{name}.json").write_text(json.dumps(manifest | change))
        (tmp_path / "val-00000.bin").write_bytes((token_folder / "val-00000.bin").read_bytes())
        with pytest.raises(TokenFileError, match=message):
            run(model_folder, tmp_path / f"{name}.bin")
    with pytest.raises(UsageError, match=r"name one of them, such as .*val\.json"):
        run(model_folder, token_folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": CONTEXT + 1}, "window must be at most 32, the context length"),
        ({"window": 8, "stride": 9}, "stride must be at most 8, the window"),
        ({"stride": 0}, "stride must be at least 1; got 0"),
        ({"separator": ""}, "--no-separator"),
        ({"document_mask": True}, "is for --documents packed"),
        ({"documents": "packed", "by": "kind"}, "needs --documents apart"),
        ({"by": "kind"}, "has no records with a field 'kind'"),
    ],
)
def test_settings_that_do_not_fit(options: dict[str, Any], message: str, model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UsageError, match=message):
        run(model_folder, tmp_path / "a.txt", **options)


@pytest.mark.case("D40")
@pytest.mark.parametrize(
    "use", [run, lambda folder, _: list(stream_text(folder, "a", max_tokens=1, seed=0))], ids=["evaluate", "generate"]
)
def test_a_model_with_a_flipped_bit_is_refused_by_name(
    model_folder: Path, tmp_path: Path, use: Callable[[Path, Path], object]
) -> None:
    folder = shutil.copytree(model_folder, tmp_path / "damaged")
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 0x20
    (folder / "model.safetensors").write_bytes(content)
    (tmp_path / "text.txt").write_text("text")
    with pytest.raises(ModelFolderError, match=r"damaged/model\.safetensors is not what was written"):
        use(folder, tmp_path / "text.txt")


@pytest.mark.case("D50")
def test_a_token_file_that_is_cut_off_meanwhile_is_an_error(
    model_folder: Path, tokenizer: Tokenizer, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not fewer tokens, in silence."""
    encode_files([text_file], tokenizer, tmp_path)
    verify = TokenFile.verify

    def verify_and_cut(self: TokenFile) -> None:
        verify(self)
        os.truncate(tmp_path / "train-00000.bin", 1000)

    monkeypatch.setattr(TokenFile, "verify", verify_and_cut)
    with pytest.raises(TokenFileError, match=r"train-00000\.bin was cut short while it was read"):
        run(model_folder, tmp_path / "train.bin")


def test_a_model_that_has_diverged_is_an_error(model_folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = load_model_folder(model_folder)
    torch.nn.init.constant_(folder.model.model.norm.weight, 1e38)
    save_model_folder(
        tmp_path / "far", model=folder.model, tokenizer=tokenizer, generation=folder.generation, provenance={}
    )
    (tmp_path / "a.txt").write_text(TEXT)
    with pytest.raises(TrainerError, match="are NaN or infinite"):
        run(tmp_path / "far", tmp_path / "a.txt")


def test_bytes_are_exact_for_any_text(model_folder: Path, tmp_path: Path) -> None:
    text = "".join(map(chr, np.random.default_rng(0).integers(1, 0xD000, 500)))
    (tmp_path / "any.txt").write_text(text, newline="")
    assert run(model_folder, tmp_path / "any.txt")["total"]["bytes"] == len(text.encode())
