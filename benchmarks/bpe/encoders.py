"""How each package turns text into ids and back: the fastest call that it has for the work.

The number of threads is set from outside (worker.py). Results are what the package gives; digests.py
makes one array of them where they are compared.
"""

# A class is one package; its methods are the same everywhere, see `Encoder`.
# ruff: noqa: D101, D102

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bpe.corpus import SEPARATOR
from benchmarks.bpe.trainers import GPT2_PATTERN

# NumPy is imported where it is needed: a package that does without it shall not find it imported.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ids = npt.NDArray[np.uint32]

TOKENIZER_FILE, RANKS_FILE = "tokenizer.json", "ranks.tiktoken"


class Encoder:
    """One package with the vocabulary of the benchmark. What a package cannot do is None.

    `one` encodes a long text, `short` a short one, `batch` many. `file` encodes a corpus to one flat file of 16-bit
    ids that is on disk when it returns. `to_bytes` and `to_text` decode ids of the kind that `ids` makes, `texts` many
    lists of them.
    """

    file: Any = None
    to_bytes: Any = None
    to_text: Any = None
    texts: Any = None

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def one(self, text: str) -> Any:
        return self.tokenizer.encode(text)

    def short(self, text: str) -> Any:
        return self.one(text)

    def batch(self, texts: list[str]) -> Any:
        return self.tokenizer.encode_batch(texts)

    def ids(self, ids: "Ids") -> Any:
        return ids.tolist()


class Ownlm(Encoder):
    def __init__(self, folder: Path):
        from shared.bpe import Tokenizer

        super().__init__(Tokenizer.from_files(folder / TOKENIZER_FILE))

    def one(self, text: str) -> Any:
        return self.tokenizer.encode_to_numpy(text)

    def batch(self, texts: list[str]) -> Any:
        return self.tokenizer.encode_batch_to_numpy(texts)

    def file(self, path: Path, target: Path) -> None:
        from trainer.tokens.encode import encode_files

        encode_files([path], self.tokenizer, target.parent / "tokens")
        (target.parent / "tokens" / "train-00000.bin").rename(target)

    def ids(self, ids: "Ids") -> Any:
        return ids

    def to_bytes(self, ids: Any) -> Any:
        return self.tokenizer.decode_bytes(ids)

    def to_text(self, ids: Any) -> Any:
        return self.tokenizer.decode(ids)

    def texts(self, batch: list[Any]) -> Any:
        return [self.tokenizer.decode(ids) for ids in batch]


class Gigatoken(Encoder):
    def __init__(self, folder: Path):
        import gigatoken

        super().__init__(gigatoken.Tokenizer(str(folder / TOKENIZER_FILE)))

    def batch(self, texts: list[str]) -> Any:
        return self.tokenizer.encode_batch(texts, parallel=_threads() > 1)

    def file(self, path: Path, target: Path) -> None:
        import gigatoken

        source = gigatoken.TextFileSource([path], separator=SEPARATOR)
        _write(self.tokenizer.encode_files(source, parallel=_threads() > 1), target)

    def ids(self, ids: "Ids") -> Any:
        return ids

    def to_bytes(self, ids: Any) -> Any:
        return self.tokenizer.decode(ids)


class Gigatok(Gigatoken):
    def __init__(self, folder: Path):
        import gigatok

        Encoder.__init__(self, gigatok.Tokenizer(str(folder / TOKENIZER_FILE)))

    def batch(self, texts: list[str]) -> Any:
        return self.tokenizer.encode_batch(texts)

    def file(self, path: Path, target: Path) -> None:
        import gigatok

        _write(self.tokenizer.encode_files(gigatok.TextFileSource([path], separator=SEPARATOR.encode())), target)


class Tokenizers(Encoder):
    def __init__(self, folder: Path):
        from tokenizers import Tokenizer

        super().__init__(Tokenizer.from_file(str(folder / TOKENIZER_FILE)))

    def one(self, text: str) -> Any:
        return self.tokenizer.encode(text).ids

    def batch(self, texts: list[str]) -> Any:
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts)]

    def to_text(self, ids: Any) -> Any:
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def texts(self, batch: list[Any]) -> Any:
        return self.tokenizer.decode_batch(batch, skip_special_tokens=False)


class Snaptokens(Tokenizers):
    def __init__(self, folder: Path):
        import snaptokens

        Encoder.__init__(self, snaptokens.Tokenizer.from_file(str(folder / TOKENIZER_FILE)))

    def one(self, text: str) -> Any:
        return self.tokenizer.encode_batch_flat([text])

    def short(self, text: str) -> Any:
        return self.tokenizer.encode(text).ids

    def batch(self, texts: list[str]) -> Any:
        return self.tokenizer.encode_batch_flat(texts)


class Morpheme(Tokenizers):
    def __init__(self, folder: Path):
        import morpheme

        Encoder.__init__(self, morpheme.Tokenizer.from_file(str(folder / TOKENIZER_FILE)))

    def batch(self, texts: list[str]) -> Any:
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]


class Tokie(Encoder):
    def __init__(self, folder: Path):
        import tokie

        super().__init__(tokie.Tokenizer.from_json(str(folder / TOKENIZER_FILE)))

    def one(self, text: str) -> Any:
        return self.tokenizer.encode_batch_flat([text], add_special_tokens=False)

    def short(self, text: str) -> Any:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def batch(self, texts: list[str]) -> Any:
        return self.tokenizer.encode_batch_flat(texts, add_special_tokens=False)

    def file(self, path: Path, target: Path) -> None:
        _write(self.tokenizer.encode_files([str(path)], separator=SEPARATOR.encode()), target)

    def to_bytes(self, ids: Any) -> Any:
        return self.tokenizer.decode_bytes(ids)

    def to_text(self, ids: Any) -> Any:
        return self.tokenizer.decode(ids)

    def texts(self, batch: list[Any]) -> Any:
        return self.tokenizer.decode_batch(batch)


class Tuetoken(Encoder):
    def __init__(self, folder: Path):
        import tuetoken

        super().__init__(tuetoken.Tokenizer(str(folder / TOKENIZER_FILE)))

    def one(self, text: str) -> Any:
        return self.tokenizer.encode_to_bytes(text)

    def short(self, text: str) -> Any:
        return self.tokenizer.encode_ordinary(text)

    def batch(self, texts: list[str]) -> Any:
        buffer = self.tokenizer.encode_ordinary_to_buffer(texts, num_threads=_threads())
        return buffer["data"], buffer["offsets"]

    def ids(self, ids: "Ids") -> Any:
        return ids

    def to_text(self, ids: Any) -> Any:
        return self.tokenizer.decode_array(ids)


class Kitoken(Encoder):
    def __init__(self, folder: Path):
        import kitoken

        super().__init__(kitoken.Kitoken.from_tokenizers_file(str(folder / TOKENIZER_FILE)))

    def batch(self, texts: list[str]) -> Any:
        return self.tokenizer.encode_all(texts)

    def to_bytes(self, ids: Any) -> Any:
        return self.tokenizer.decode(ids)


class Tiktoken(Encoder):
    def __init__(self, folder: Path):
        import tiktoken

        lines = (folder / RANKS_FILE).read_bytes().splitlines()
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
        encoding = tiktoken.Encoding(
            "benchmark", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={SEPARATOR: len(ranks)}
        )
        super().__init__(encoding)

    def one(self, text: str) -> Any:
        return self.tokenizer.encode_to_numpy(text, disallowed_special=())

    def short(self, text: str) -> Any:
        return self.tokenizer.encode_ordinary(text)

    def batch(self, texts: list[str]) -> Any:
        if _threads() == 1:
            return [self.tokenizer.encode_ordinary(text) for text in texts]
        return self.tokenizer.encode_ordinary_batch(texts, num_threads=_threads())

    def to_bytes(self, ids: Any) -> Any:
        return self.tokenizer.decode_bytes(ids)

    def to_text(self, ids: Any) -> Any:
        return self.tokenizer.decode(ids)

    def texts(self, batch: list[Any]) -> Any:
        return self.tokenizer.decode_batch(batch, num_threads=_threads())


ENCODERS: dict[str, Any] = {
    "ownlm": Ownlm,
    "gigatoken": Gigatoken,
    "snaptokens": Snaptokens,
    "gigatok": Gigatok,
    "tokie": Tokie,
    "tuetoken": Tuetoken,
    "kitoken": Kitoken,
    "tiktoken": Tiktoken,
    "tokenizers": Tokenizers,
    "morpheme": Morpheme,
}


def _threads() -> int:
    return int(os.environ["RAYON_NUM_THREADS"])


def _write(result: Any, target: Path) -> None:
    """Write the ids of all documents as 16-bit numbers, and wait until they are on disk, as ours does."""
    import numpy as np

    ids = result[0] if isinstance(result, tuple) else result.layout.content.data
    with target.open("wb") as file:
        np.asarray(ids, np.uint16).tofile(file)
        file.flush()
        os.fsync(file.fileno())
