"""A model whose tokenizer begins every text with a token of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors

from services.inference.app import create_app
from services.inference.settings import InferenceSettings
from shared.bpe import Tokenizer
from shared.lm import (
    GenerationDefaults,
    ModelConfig,
    SamplingParams,
    Transformer,
    generate,
    load_model_folder,
    save_model_folder,
)
from tests.services.conftest import ready_client

BOS = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    source = HFTokenizer(models.BPE(vocab=alphabet, merges=[]))
    source.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    source.decoder = decoders.ByteLevel()
    source.add_special_tokens(["<s>"])
    source.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    folder = tmp_path_factory.mktemp("bos")
    source.save(str(folder / "tokenizer.json"))
    config = ModelConfig(
        vocab_size=257, context_length=32, d_model=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, d_ff=32,
        initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    save_model_folder(
        folder / "model",
        model=Transformer(config),
        tokenizer=Tokenizer.from_files(folder),
        generation=GenerationDefaults(),
        provenance={},
    )
    return folder / "model"


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with ready_client(create_app(InferenceSettings(model_dir=folder, threads=1))) as client:
        yield client


def test_an_empty_prompt_starts_from_bos(client: TestClient, folder: Path) -> None:  # B57
    model = load_model_folder(folder).model
    expected = list(generate(model, [BOS], SamplingParams(temperature=0), max_tokens=5))
    answer = client.post("/generate", json={"prompt": "", "max_tokens": 5, "temperature": 0}).json()
    assert answer["choices"][0]["tokens"] == expected
    assert answer["usage"]["prompt_tokens"] == 1
    assert client.post("/generate", json={"prompt": []}).status_code == 400


def test_there_is_exactly_one_bos(client: TestClient) -> None:  # B27
    def prompt_tokens(prompt: object) -> int:
        usage = client.post("/generate", json={"prompt": prompt, "max_tokens": 1}).json()["usage"]
        return int(usage["prompt_tokens"])

    assert prompt_tokens("hi") == 1 + 2
    assert prompt_tokens("<s>hi") == 1 + 5, "the text of a control token is plain text"
    assert prompt_tokens([BOS, 1, 2]) == 3, "token ids are used as they are"
