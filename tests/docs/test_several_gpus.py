"""The command for several machines, on two of one process each."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared.bpe import Tokenizer
from shared.lm import load_model_folder
from tests.docs.pages import DOCS, run_example
from tests.ports import free_port
from tests.trainer.made_text import SEPARATOR, made_documents
from trainer.checkpoints.store import CheckpointStore
from trainer.settings.encode import EncodeSettings
from trainer.tokens.encode import encode_files

PAGE = DOCS / "how-to" / "several-gpus.md"


@pytest.mark.slow
def test_several_machines(s3: str, tmp_path: Path) -> None:
    bucket = f"{s3}/{tmp_path.name}"
    (tmp_path / "text.txt").write_text(SEPARATOR.join(made_documents(30_000)), encoding="utf-8")
    tokenizer = Tokenizer.from_vocab({bytes([byte]): byte for byte in range(256)}, [], [SEPARATOR])
    encode_files([tmp_path / "text.txt"], tokenizer, Path(f"{bucket}/tokens"), EncodeSettings(val_fraction=0.1))
    instead = {
        "export ": "export OWNLM_CACHE_DIR=$PWD/cache ",
        "10.0.0.1:29500": f"127.0.0.1:{free_port()} --local-addr 127.0.0.1",
        "--nproc-per-node 8": "--nproc-per-node 1",
        "s3://my-bucket": bucket,
    }
    machines = [tmp_path / name for name in ("first", "second")]

    def run(machine: Path) -> None:
        machine.mkdir()
        run_example(PAGE, "two machines", machine, instead, small=True)

    with ThreadPoolExecutor() as pool:
        list(pool.map(run, machines))
    [model] = [path for machine in machines if (path := machine / "runs" / "first" / "model").exists()]
    assert load_model_folder(model).tokenizer.fingerprint == tokenizer.fingerprint
    assert CheckpointStore(f"{bucket}/runs/first").steps() == [4]
