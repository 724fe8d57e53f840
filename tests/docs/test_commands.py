"""The commands in the documentation work."""

import contextlib
import json
import pickle
import re
import shlex
import shutil
from pathlib import Path

import cyclopts
import numpy as np
import pytest

from shared.bpe import Tokenizer, train_bpe
from shared.lm import GenerationDefaults, ModelConfig, Transformer, save_model_folder
from tests.docs.pages import DOCS, examples, pages, run_page
from tests.trainer.importing import writers
from trainer.cli import DERIVED_OPTIONS, app
from trainer.tokens.token_file import TokenFileError

TUTORIAL = DOCS / "tutorial.md"
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))


def trainer_commands(text: str) -> list[list[str]]:
    """What follows `-m trainer` or `ownlm`, up to the end of the command."""
    joined = re.sub(r"\$\w+", "pre", text.replace("\\\n", " "))  # $norm, of a loop over architectures
    found = re.findall(r"""(?:-m trainer|^ownlm) ((?:"[^"\n]*"|'[^'\n]*'|[^\n|;&"'])*)""", joined, re.MULTILINE)
    return [shlex.split(command, comments=True) for command in found]


COMMANDS = [
    pytest.param(command, id=f"{example.place} {command[0]}")
    for page in pages()
    for example in examples(page)
    if example.language in ("sh", "text")
    for command in trainer_commands(example.text)
]


def test_examples_that_are_left_to_a_test_have_one() -> None:
    names = {example.marker[5:] for page in pages() for example in examples(page) if example.marker.startswith("with ")}
    tests = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("test_*.py")))
    assert len(names) >= 5
    assert [name for name in names if f'PAGE, "{name}"' not in tests] == []


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_pages_with_an_object_store_say_what_it_needs(page: Path) -> None:
    commands = "".join(example.text for example in examples(page) if example.language == "sh")
    extras = re.findall(r"'\.\[([\w,]+)\]'", page.read_text(encoding="utf-8"))
    assert set(re.findall(r"\b(s3|gs|hf)://", commands)) <= {extra for group in extras for extra in group.split(",")}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands for every model that a command starts from."""
    folder = tmp_path_factory.mktemp("models") / "model"
    tokenizer = train_bpe(["Once upon a time"], 258, special_tokens=["<|endoftext|>"]).tokenizer
    shape = {"d_model": 16, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "head_dim": 16, "d_ff": 16}
    model = Transformer(ModelConfig(vocab_size=tokenizer.vocab_size, context_length=4096, **shape))
    save_model_folder(folder, model=model, tokenizer=tokenizer, generation=GenerationDefaults(), provenance={})
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_of_the_trainer_has_options_that_exist(
    command: list[str], model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["/dev/stdin" if word == "-" else word for word in command]
    while "--config" in command:  # which may hold all that is required
        place = command.index("--config")
        command = command[:place] + command[place + 2 :]
    if "--init" in command:
        command[command.index("--init") + 1] = str(model_folder)
    monkeypatch.setattr(app, "config", DERIVED_OPTIONS)
    with contextlib.suppress(cyclopts.MissingArgumentError, TokenFileError):  # the scaling presets read the token files
        app.parse_args(command, print_error=False, exit_on_error=False)


def test_there_are_many() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.extended
def test_the_tutorial_with_a_small_model(tmp_path: Path) -> None:
    run_page(TUTORIAL, tmp_path, small=True, until="trainer generate")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_tutorial_as_written(tmp_path: Path) -> None:
    run_page(TUTORIAL, tmp_path, small=False)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the how-tos start from: texts, tokenizers, token files and a run."""
    folder = tmp_path_factory.mktemp("workspace")
    run_page(TUTORIAL, folder, small=True, until="trainer train")
    stories = (folder / "stories.txt").read_text(encoding="utf-8")[:20_000].split("<|endoftext|>\n")[:-1]
    (folder / "web.txt").write_text("\n".join(stories), encoding="utf-8")
    play = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\n"
    (folder / "shakespeare.txt").write_text(play * 14_000, encoding="utf-8")
    records = [{"text": text, "source": "ab"[number % 2]} for number, text in enumerate(stories)]
    (folder / "web.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    for name in ("corpus/one.txt", "corpus/two.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join(stories[:10]), encoding="utf-8")
    for name in ("stories-tokenizer", "web-tokenizer"):
        shutil.copytree(folder / "tokenizer", folder / name)
    _finish_the_assignment(folder)
    _write_models_of_others(folder)
    return folder


def _write_models_of_others(folder: Path) -> None:
    writers.write_llama2c(folder / "stories.bin", writers.llama_weights(), 1)
    (folder / "checkpoints").mkdir()
    writers.write_litgpt(folder / "checkpoints" / "litgpt", writers.litgpt_weights())
    writers.write_meta(folder / "checkpoints" / "llama", writers.llama_weights(), parts=2)


def _finish_the_assignment(folder: Path) -> None:
    """What a student of CS336 brings: a corpus, the results of training BPE, an array of ids."""
    tokenizer = Tokenizer.from_files(folder / "tokenizer")
    tokens = tokenizer.vocabulary.tokens
    merges = [(tokens[left], tokens[right]) for left, right in tokenizer.vocabulary.merges]
    (folder / "bpe.pkl").write_bytes(pickle.dumps(({**tokenizer.tokens}, merges)))
    text = (folder / "stories.txt").read_text(encoding="utf-8")[:20_000]
    np.save(folder / "ids.npy", np.array(tokenizer.encode(text, allowed_special="all"), np.uint16))
    (folder / "corpus.en").write_text(text, encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_a_how_to(page: Path, workspace: Path, tmp_path: Path) -> None:
    if page.stem == "train-on-your-text":  # which makes its own tokenizer, token files and run
        shutil.copytree(
            workspace, tmp_path / "own", ignore=lambda folder, names: {"tokenizer", "tokens", "runs", ".bin"} & {*names}
        )
    else:
        shutil.copytree(workspace, tmp_path / "own")
    run_page(page, tmp_path / "own", small=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    ["reference/files.md", "reference/recipes.md", "explanation/tokenizer.md", "lab/optimization-ideas.md"],
)
def test_examples_elsewhere(page: str, workspace: Path, tmp_path: Path) -> None:
    shutil.copytree(workspace, tmp_path / "own")
    run_page(DOCS / page, tmp_path / "own", small=True)
