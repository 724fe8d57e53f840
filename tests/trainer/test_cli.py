"""The command line as a person meets it: real processes, exit codes, one message."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from shared.lm import load_model_folder
from trainer.cli import app

TINY = [
    *("--d-model", 32, "--num-layers", 2, "--num-heads", 2, "--d-ff", 48, "--context-length", 16, "--batch-size", 4),
    *("--device", "cpu", "--threads", 1, "--log-interval", 1, "--eval-tokens", 200, "--sample-interval", 0),
    *("--warmup-steps", 2, "--sample-prompt", "the"),
]


# The command line, with time to stop a run between its fifth step and its last.
SLOW = """
import time
from trainer.training import trainer as training
from trainer.cli import main

after = training.Trainer._after

def after_a_while(self, step, report):
    time.sleep(0.1 * (step.number > 5))
    after(self, step, report)

training.Trainer._after = after_a_while
main()
"""


def start(
    *arguments: object, program: tuple[str, str] = ("-m", "trainer"), **options: object
) -> "subprocess.Popen[str]":
    command = [sys.executable, *program, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, **options)  # type: ignore[call-overload,no-any-return]


def run(*arguments: object, **options: object) -> "subprocess.CompletedProcess[str]":
    process = start(*arguments, **options)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def one_line(text: str) -> str:
    """Text without the frame and the line breaks of a box."""
    return " ".join(text.replace("│", " ").split())


def wait_for(path: Path, steps: int) -> None:
    """Wait until a run has logged this many steps."""
    deadline = time.monotonic() + 240
    while not path.exists() or path.read_text().count("learning_rate") < steps:
        assert time.monotonic() < deadline, f"{path} does not grow"
        time.sleep(0.01)


def train_arguments(token_folder: Path, output: Path, *more: object) -> list[object]:
    return ["train", "--data", token_folder, "--output", output, *TINY, *more]


class TestUsage:
    def test_an_unknown_option_names_the_nearest(self) -> None:
        done = run("train", "--data", "d", "--output", "o", "--d-modle", 3)
        assert done.returncode == 2
        assert "Unknown option: --d-modle. Did you mean --d-model?" in one_line(done.stderr + done.stdout)

    @pytest.mark.parametrize("command", [name for name in app if not name.startswith("-")])
    def test_no_two_settings_share_an_option(self, command: str) -> None:
        names = [name for each in app[command].assemble_argument_collection() if each.parse for name in each.names]
        assert not {name for name in names if names.count(name) > 1} - {"*"}

    def test_a_missing_option_is_wrong_usage(self) -> None:
        done = run("vocab", "a.txt", "--output", "b")
        assert done.returncode == 2
        assert "--vocab-size" in done.stderr + done.stdout

    def test_an_unknown_key_of_a_settings_file_names_the_nearest(self, tmp_path: Path) -> None:
        (tmp_path / "s.toml").write_text("vocab_sise = 300\n")
        done = run("vocab", "a.txt", "--output", "b", "--config", tmp_path / "s.toml")
        assert done.returncode == 2
        assert "unknown key 'vocab_sise'. Did you mean 'vocab_size'?" in one_line(done.stderr + done.stdout)

    @pytest.mark.parametrize(("content", "message"), [("a = = 1", "is not valid TOML"), (None, "No such file")])
    def test_a_settings_file_that_cannot_be_read(self, tmp_path: Path, content: str | None, message: str) -> None:
        if content is not None:
            (tmp_path / "s.toml").write_text(content)
        done = run("vocab", "a.txt", "--config", tmp_path / "s.toml")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr
        assert "s.toml" in done.stderr

    def test_a_wrong_number_of_values_in_a_settings_file_names_the_option(self, tmp_path: Path) -> None:
        (tmp_path / "settings.toml").write_text("betas = [0.9]")
        result = run("train", "--config", tmp_path / "settings.toml")
        assert result.returncode == 2
        assert "--betas: Incorrect number of arguments: expected 2 but got 1" in one_line(result.stderr)

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
    @pytest.mark.parametrize("arguments", [("--help",), ("train", "--help"), ("schedule", "--max-steps", "9")])
    def test_output_that_cannot_be_written_fails_with_one_message(self, arguments: tuple[str, ...]) -> None:
        with Path("/dev/full").open("wb") as full:
            command = [sys.executable, "-m", "trainer", *arguments]
            result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert result.returncode == 1
        assert re.fullmatch(r"([0-9:]+ )?error: No space left on device\n", result.stderr)

    def test_the_command_line_wins_over_the_file_over_the_defaults(self, text_file: Path, tmp_path: Path) -> None:
        settings = (
            f'files = ["{text_file}"]\nvocab_size = 280\noutput = "{tmp_path / "t"}"\nspecial_token = ["<|end|>"]'
        )
        (tmp_path / "s.toml").write_text(settings)
        done = run("vocab", "--config", tmp_path / "s.toml", "--vocab-size", 270)
        assert done.returncode == 0, done.stderr
        assert ": 270 tokens" in done.stderr
        assert "<|end|>" in (tmp_path / "t" / "tokenizer.json").read_text()

    def test_a_hyphen_is_standard_input_for_inputs_only(
        self, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("trainer.evaluation.sampling.stream_text", lambda _model, prompt, **_: [prompt])
        with pytest.raises(SystemExit) as ended:
            app.meta(["generate", "model", "-"])
        assert (ended.value.code, capsys.readouterr().out) == (0, "-\n")
        command = [sys.executable, "-m", "trainer", "vocab", "-", "--vocab-size", "270", "--output", tmp_path / "-"]
        done = subprocess.run(command, input=text_file.read_bytes(), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "-" / "tokenizer.json").is_file()

    @pytest.mark.parametrize(("path", "name"), [("bin/ownlm", "ownlm"), ("trainer/__main__.py", "python -m trainer")])
    def test_usage_names_the_program_as_it_was_started(self, path: str, name: str) -> None:
        code = f"import sys; sys.argv = [{path!r}, 'train', '--help']; from trainer.__main__ import main; main()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"Usage: {name} train ")

    @pytest.mark.parametrize(
        "command", ["vocab", "encode", "tokens", "train", "evaluate", "evaluate-tokenizers", "generate", "demo"]
    )
    def test_help_needs_no_torch(self, command: str) -> None:
        code = f"""
import sys
sys.argv[1:] = ["{command}", "--help"]
from trainer.cli import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert "--config" in done.stdout

    def test_learning_a_vocabulary_needs_no_torch(self, text_file: Path, tmp_path: Path) -> None:
        code = f"""
import sys
sys.argv[1:] = ["vocab", "{text_file}", "--vocab-size", "270", "--output", "{tmp_path}/t"]
from trainer.cli import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


@pytest.mark.extended
class TestFailure:
    def test_a_failed_job_gives_one_message_and_no_traceback(self, tmp_path: Path) -> None:
        done = run("train", "--data", tmp_path, "--output", tmp_path / "run")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert str(tmp_path) in done.stderr
        assert "Traceback" not in done.stderr

    def test_verbose_shows_the_traceback(self, tmp_path: Path) -> None:
        done = run("generate", tmp_path / "none", "x", "--verbose")
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert "no such folder" in done.stderr

    @pytest.mark.parametrize("place", [".", "inside"])
    def test_an_output_folder_that_is_a_file_is_told(self, text_file: Path, tmp_path: Path, place: str) -> None:
        (tmp_path / "notes").touch()
        done = run("vocab", text_file, "--vocab-size", 270, "--output", tmp_path / "notes" / place)
        assert done.returncode == 1
        assert f"{tmp_path}/notes" in done.stderr
        assert "expected a directory, found a file; give another name" in done.stderr

    def test_settings_that_contradict_each_other_are_wrong_usage(self, token_folder: Path, tmp_path: Path) -> None:
        """B89."""
        done = run(*train_arguments(token_folder, tmp_path / "run", "--total-batch-size", 10))
        assert done.returncode == 2
        assert "--total-batch-size must be a multiple of --batch-size (4), so 8 or 12; got 10" in one_line(done.stderr)

    def test_a_vocabulary_is_not_overwritten_silently(self, text_file: Path, tmp_path: Path) -> None:
        arguments = ["vocab", text_file, "--output", tmp_path / "t"]
        assert run(*arguments, "--vocab-size", 270).returncode == 0
        before = (tmp_path / "t" / "tokenizer.json").read_bytes()
        assert run(*arguments, "--vocab-size", 280).returncode == 1
        assert (tmp_path / "t" / "tokenizer.json").read_bytes() == before
        assert run(*arguments, "--vocab-size", 280, "--overwrite").returncode == 0
        assert (tmp_path / "t" / "tokenizer.json").read_bytes() != before


def test_text_to_model_to_text(text_file: Path, tmp_path: Path) -> None:
    """The whole way, as the README shows it."""
    assert run("vocab", text_file, "--vocab-size", 290, "--output", tmp_path / "tokenizer").returncode == 0
    encode = ["encode", text_file, "--tokenizer", tmp_path / "tokenizer", "--output", tmp_path / "tokens"]
    assert run(*encode, "--val-fraction", 0.1).returncode == 0
    done = run(*train_arguments(tmp_path / "tokens", tmp_path / "run", "--max-steps", 60, "--learning-rate", 0.01))
    assert done.returncode == 0, done.stderr
    assert "validation loss" in done.stderr
    done = run("generate", tmp_path / "run" / "model", "the old", "--seed", 3, "--max-tokens", 8)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the old ")
    done = run("evaluate", tmp_path / "run" / "model", text_file, "--max-tokens", 100, "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["total"]["tokens"] == 100


@pytest.mark.case("D27")
def test_vocab_writes_no_pattern_that_tokenizers_reads_differently_or_refuses(text_file: Path, tmp_path: Path) -> None:
    for pattern in ("(?s)a.|.", "(?m)b.a|."):
        done = run("vocab", text_file, "--output", tmp_path / "t", "--vocab-size", 300, "--pattern", pattern)
        assert done.returncode == 2
        message = f"error: --pattern: the regular expression {pattern!r} is not supported: the group {pattern[:4]!r}"
        assert message in one_line(done.stderr)
        assert not (tmp_path / "t").exists()


@pytest.mark.extended
@pytest.mark.case("D19")
def test_a_pattern_that_backtracks_without_end_ends_the_job_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("ab ab ba")
    (tmp_path / "evil.txt").write_text("a" * 70)
    learn = ["--vocab-size", 257, "--pattern", r"(?:a|a)+(?:\w|\w)*b|\s+|[\s\S]"]
    assert run("vocab", tmp_path / "good.txt", "--output", tmp_path / "t", *learn).returncode == 0
    for done in (
        run("vocab", tmp_path / "evil.txt", "--output", tmp_path / "u", *learn),
        run("encode", tmp_path / "evil.txt", "--output", tmp_path / "v", "--tokenizer", tmp_path / "t"),
    ):
        assert done.returncode == 1
        sentence = "the tokenizer's pattern took more than 1.0 s of CPU time for a text of 70 characters"
        assert sentence in one_line(done.stderr)
        assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def slow_encoding(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Arguments of a run that takes seconds, since a custom pattern is slow; its first part is finished soon."""
    folder = tmp_path_factory.mktemp("slow")
    line = "the cat sat on the mat, and the dog sat by the cat.<|endoftext|>\n"
    (folder / "first.txt").write_text(line * 100)
    (folder / "text.txt").write_text(line * 12_000)
    pattern = ["--vocab-size", 300, "--pattern", r"\w+|\W"]
    (folder / "small.txt").write_text("the cat sat on the mat")
    assert run("vocab", folder / "small.txt", "--output", folder / "t", *pattern).returncode == 0
    texts = folder / "first.txt", folder / "text.txt"
    encode = ["encode", *texts, "--tokenizer", folder / "t", "--shard-tokens", 60_000]
    assert run(*encode, "--output", folder / "whole").returncode == 0
    return encode


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_stopped_encoding_continues_to_the_same_files(
    number: signal.Signals, slow_encoding: list[object], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    process = start(*slow_encoding, "--output", output)
    deadline = time.monotonic() + 240
    while not (output / "encode-state-train" / "part-00000.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number), errors
    if number != signal.SIGKILL:
        assert errors.count("\n") == 1
        assert re.search(r"\d of \d parts of the text are finished and kept in", errors)
        assert "run the same command again to continue" in errors
    assert not (output / "train.json").exists()
    refused = run(*slow_encoding, "--output", output, "--seed", 1)
    assert refused.returncode == 1
    assert "the work of an interrupted run with other settings: seed: 0 then, 1 now" in refused.stderr
    done = run(*slow_encoding, "--output", output)
    assert done.returncode == 0, done.stderr
    assert "parts of the text were encoded by an earlier run: checked and kept" in done.stderr + done.stdout
    whole = Path(str(slow_encoding[1])).parent / "whole"
    for path in whole.iterdir():
        assert (output / path.name).read_bytes() == path.read_bytes()
    assert sorted(path.name for path in output.iterdir()) == sorted(path.name for path in whole.iterdir())


@pytest.fixture(scope="module")
def uninterrupted(token_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("whole") / "run"
    done = run(*train_arguments(token_folder, output, "--max-steps", 60, "--checkpoint-interval", 5))
    assert done.returncode == 0, done.stderr
    return output


@pytest.mark.extended
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL],
    ids=lambda number: number.name,
)
def test_a_stopped_run_goes_on_to_the_same_result(
    number: signal.Signals, uninterrupted: Path, token_folder: Path, tmp_path: Path
) -> None:
    """B84, B87: Ctrl-C and SIGTERM save first; after SIGKILL the last checkpoint serves."""
    output = tmp_path / "run"
    arguments = train_arguments(token_folder, output, "--max-steps", 60, "--checkpoint-interval", 5)
    process = start(*arguments, program=("-c", SLOW))
    wait_for(output / "metrics.jsonl", 8)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number), errors
    saved = sorted((output / "checkpoints").glob("step-*"))
    if number != signal.SIGKILL:
        assert f"stopped after step {int(saved[-1].name[5:])}; saved {saved[-1]}" in errors
        assert f"--config {output / 'train.toml'} --resume" in errors
    assert int(saved[-1].name[5:]) < 60
    done = run("train", "--config", output / "train.toml", "--resume")
    assert done.returncode == 0, done.stderr
    states = [load_model_folder(folder / "model").model.state_dict() for folder in (output, uninterrupted)]
    assert all(torch.equal(weight, states[1][name]) for name, weight in states[0].items())
    logs = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (output, uninterrupted)]
    losses = [[json.loads(line).get("loss") for line in lines] for lines in logs]
    assert losses[0] == losses[1]


@pytest.mark.extended
def test_a_full_disk_while_saving_keeps_the_last_checkpoint(uninterrupted: Path, tmp_path: Path) -> None:
    """B87: writing fails as on a full disk; a clear error, the exit status, and no rubbish."""
    output = tmp_path / "run"
    shutil.copytree(uninterrupted, output)
    before = sorted((output / "checkpoints").rglob("*"))

    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    more = ["--config", output / "train.toml", "--output", output, "--max-steps", 61, "--resume"]
    done = run("train", *more, preexec_fn=limit_files)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "step-00000061: writing the model failed and nothing was changed" in done.stderr
    assert sorted((output / "checkpoints").rglob("*")) == before
