"""What is not there is reported in one sentence, by every benchmark that reads something."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from benchmarks import tokenizer_service
from benchmarks.inputs import reference_texts


def refusal(module: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> SystemExit:
    """How a benchmark's command ends."""
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"benchmarks.{module}").main()
    return left.value


def test_missing_reference_texts_are_named_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWNLM_DATA", str(tmp_path))
    (tmp_path / "b").touch()
    assert reference_texts("b") == [tmp_path / "b"]
    with pytest.raises(SystemExit) as left:
        reference_texts("a", "b", "c", otherwise=", or go without")
    assert left.value.code == f"no a and no c in {tmp_path}: set OWNLM_DATA to the folder of it, or go without"


def test_learning_without_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWNLM_DATA", str(tmp_path))
    raised = refusal("learning.__main__", monkeypatch)
    assert raised.code == (
        f"no tinystories_train.txt and no tinystories_valid.txt in {tmp_path}: set OWNLM_DATA to the folder of it, or "
        "give --data"
    )


def test_tokenizer_service_without_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWNLM_DATA", str(tmp_path))
    monkeypatch.setattr(tokenizer_service.shutil, "which", lambda _: "/usr/bin/wrk")
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    raised = refusal("tokenizer_service", monkeypatch)
    assert raised.code == f"no tinystories_train.txt in {tmp_path}: set OWNLM_DATA to the folder of it"


def test_tokenizer_service_on_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert "takes two processors" in str(refusal("tokenizer_service", monkeypatch).code)


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("tokenizer_service", ["--llama-server", "nowhere"], "argument --llama-server: there is no file nowhere"),
        ("bpe.__main__", ["--corpus", "nowhere"], "argument --corpus: there is no file nowhere"),
        ("learning.__main__", ["--data", "nowhere"], "argument --data: there is no folder nowhere"),
        ("serving.__main__", ["--model", "nowhere"], "argument --model: there is no folder nowhere"),
        ("serving.__main__", ["--llama-server", "nowhere"], "argument --llama-server: there is no file nowhere"),
        ("quantization", ["nowhere", "--text", "x"], "argument folder: there is no folder nowhere"),
        ("quantization", [".", "--text", "nowhere"], "argument --text: there is no file nowhere"),
    ],
)
def test_options_that_name_nothing(
    module: str,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert refusal(module, monkeypatch, *arguments).code == 2
    assert capsys.readouterr().err.rstrip().endswith(message)


def test_folders_that_hold_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_bytes(b"x")
    text = str(tmp_path / "text")
    assert str(tmp_path) in str(refusal("quantization", monkeypatch, str(tmp_path), "--text", text).code)
    assert str(tmp_path) in str(refusal("learning.__main__", monkeypatch, "--data", str(tmp_path)).code)
