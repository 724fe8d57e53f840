"""What a task of `encode --ray` does, without Ray."""

from pathlib import Path

import pytest

from shared.bpe import Tokenizer
from trainer.cluster.task_output import TaskOutput
from trainer.settings.encode import EncodeSettings
from trainer.storage.folder import LocalFolder, StorageError
from trainer.tokens.cluster_encoder import _Common, _encode
from trainer.tokens.encode import encode_files
from trainer.tokens.job import EncodingJob
from trainer.tokens.output import Output


class FullFolder(LocalFolder):
    """Has room for one shard."""

    def put(self, file: Path, name: str) -> None:
        if "_" in name:
            raise StorageError(f"{name}: no space left on device")
        super().put(file, name)


@pytest.fixture
def job(tmp_path: Path) -> EncodingJob:
    """One part of three shards."""
    tokenizer = Tokenizer.from_vocab({bytes([byte]): byte for byte in range(256)}, [], ["<|endoftext|>"])
    (tmp_path / "a.txt").write_text("x" * 250)
    return EncodingJob.open([tmp_path / "a.txt"], tokenizer, EncodeSettings(shard_tokens=100), None)


def test_an_attempt_that_fails_leaves_the_shards_of_another(job: EncodingJob, tmp_path: Path) -> None:
    output = Output(LocalFolder(tmp_path / "out"), ["train"])
    (tmp_path / "out").mkdir()
    (tmp_path / "scratch").mkdir()
    record = _encode(_Common(job, TaskOutput(LocalFolder(tmp_path / "out"), tmp_path / "scratch")), (0, 0))
    assert len(record.all_shards) == 3
    with pytest.raises(StorageError):
        _encode(_Common(job, TaskOutput(FullFolder(tmp_path / "out"), tmp_path / "scratch")), (0, 0))
    assert output.are_intact(record.all_shards)
    assert not list((tmp_path / "scratch").iterdir())
    (tmp_path / "out" / "train-00001.bin").touch()  # of another part
    output.remove_parts(1)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["train-00001.bin"]


def test_what_killed_tasks_left_is_deleted(job: EncodingJob, tmp_path: Path) -> None:
    left = tmp_path / "out" / "encode-state-train" / "task-1"
    left.mkdir(parents=True)
    (left / "train-00000.bin").touch()
    encode_files([given.path for given in job.inputs], job.tokenizer, tmp_path / "out", job.settings)
    assert not left.parent.exists()
