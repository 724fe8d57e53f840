"""How each package learns a vocabulary from a file.

`train` imports the package itself, so that the first call of a process holds what its user waits for. Packages that
read files are given the file, others the documents one by one. `tokens` gives the bytes of what was learned.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bpe.corpus import SEPARATOR, read_documents

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_THREADS = 2


class Trainer(NamedTuple):
    """One package.

    Attributes:
        train: Learn a vocabulary of a size, special token included, from a corpus.
        tokens: The tokens in what `train` gives, if they are bytes like ours.
    """

    train: Callable[[Path, int], Any]
    tokens: Callable[[Any], Iterable[bytes]] | None


def _ownlm(path: Path, vocab_size: int) -> Any:
    from shared.bpe import train_bpe_from_sources
    from shared.bpe.training import TextFile

    return train_bpe_from_sources([TextFile(path)], vocab_size, special_tokens=[SEPARATOR])


def _gigabpe(path: Path, vocab_size: int) -> Any:
    import gigabpe

    return gigabpe.train_bpe([str(path)], vocab_size, special_tokens=[SEPARATOR], pretokenizer="bytelevel")


def _gigatoken(path: Path, vocab_size: int) -> Any:
    import gigatoken

    source = gigatoken.TextFileSource([path], separator=SEPARATOR)
    return gigatoken.train_bpe(source, vocab_size, [SEPARATOR])


def _gigatok(path: Path, vocab_size: int) -> Any:
    import gigatok

    source = gigatok.TextFileSource([path], separator=SEPARATOR.encode())
    return gigatok.train_bpe(source, vocab_size, [SEPARATOR])


def _ffbpe(path: Path, vocab_size: int) -> Any:
    import ffbpe

    return ffbpe.train_bpe(read_documents(path), vocab_size=vocab_size, special_tokens=[SEPARATOR])


def _rustbpe(path: Path, vocab_size: int) -> Any:
    import rustbpe

    tokenizer = rustbpe.Tokenizer()
    tokenizer.train_from_iterator(read_documents(path), vocab_size - 1, pattern=GPT2_PATTERN)
    return tokenizer


def _minibperust(path: Path, vocab_size: int) -> Any:
    from MiniBpeRust import FastRegexTokenizer

    tokenizer = FastRegexTokenizer(GPT2_PATTERN)
    tokenizer.train_files([path], vocab_size - 1)
    return tokenizer


def _bpeasy(path: Path, vocab_size: int) -> Any:
    import bpeasy

    return bpeasy.train_bpe(read_documents(path), GPT2_PATTERN, 1 << 20, vocab_size - 1)


def _sentencepiece(path: Path, vocab_size: int) -> Any:
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        input=str(path), model_writer=model, vocab_size=vocab_size, model_type="bpe", character_coverage=1.0,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        max_sentence_length=1 << 30, num_threads=_THREADS, minloglevel=2,
    )  # fmt: skip
    return model


def _tokenizers(path: Path, vocab_size: int) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[SEPARATOR], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(read_documents(path), trainer)
    return tokenizer


def _from_printable(tokens: Iterable[str]) -> Iterable[bytes]:
    from shared.bpe.byte_alphabet import from_printable

    return [from_printable(token) for token in tokens if token != SEPARATOR]


TRAINERS = {
    "ownlm": Trainer(_ownlm, lambda result: result.tokenizer.vocabulary.tokens.values()),
    "gigabpe": Trainer(_gigabpe, lambda result: _from_printable(result[0])),
    "gigatoken": Trainer(_gigatoken, lambda result: result[0].values()),
    "gigatok": Trainer(_gigatok, lambda result: result[0].values()),
    "ffbpe": Trainer(_ffbpe, lambda model: model.vocab),
    "rustbpe": Trainer(_rustbpe, lambda tokenizer: [bytes(token) for token, _ in tokenizer.get_mergeable_ranks()]),
    "minibperust": Trainer(_minibperust, lambda tokenizer: tokenizer.vocab.values()),
    "bpeasy": Trainer(_bpeasy, lambda vocabulary: vocabulary),
    "sentencepiece": Trainer(_sentencepiece, None),
    "tokenizers": Trainer(_tokenizers, lambda tokenizer: _from_printable(tokenizer.get_vocab())),
}
