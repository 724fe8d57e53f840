"""GPT-2's two files: vocab.json with ids, merges.txt with one merge per line."""

from pathlib import Path

from shared.bpe.byte_alphabet import CHARACTER_TO_BYTE
from shared.bpe.errors import TokenizerError
from shared.bpe.formats.printable_entries import ordinary_entries, parse_merges, parse_tokens, parse_vocab
from shared.bpe.formats.reading import read_json, read_text
from shared.bpe.formats.tokenizer_config import read_roles
from shared.bpe.patterns.named import PATTERNS
from shared.bpe.vocabulary import AddedToken, Vocabulary


def read(vocab_path: Path, merges_path: Path) -> Vocabulary:
    """Read a vocabulary with GPT-2's pattern.

    Entries that are neither a byte nor in a merge must be special tokens, like `<|endoftext|>`.

    Raises:
        TokenizerError: A file is missing or damaged; names it and the line or entry.
    """
    vocab = parse_vocab(vocab_path, read_json(vocab_path))
    if not merges_path.exists():
        raise TokenizerError(
            f"{merges_path} cannot be read: No such file or directory; {vocab_path} needs its merges there, or as the "
            "second argument of Tokenizer.from_files"
        )
    lines = [line.removesuffix("\r") for line in read_text(merges_path).split("\n")]
    # A merge has a space in it and so has the header, but only the header begins with this word.
    first = 1 if lines[0].startswith("#version") else 0
    while len(lines) > first and not lines[-1]:
        lines.pop()
    try:
        merges = parse_merges(merges_path, lines[first:], vocab, first + 1)
    except TokenizerError as error:
        raise TokenizerError(f"{error} (merges are numbered by line)") from None
    ordinary = ordinary_entries(vocab, merges, vocab.keys() - CHARACTER_TO_BYTE.keys())
    try:
        return Vocabulary(
            tokens=parse_tokens(vocab_path, ordinary),
            merges=tuple((vocab[left], vocab[right]) for left, right in merges),
            added=tuple(
                AddedToken(token_id, text)
                for text, token_id in sorted(vocab.items(), key=lambda entry: entry[1])
                if text not in ordinary
            ),
            pattern=PATTERNS["gpt2"],
            **read_roles(vocab_path.parent),
        )
    except TokenizerError as error:
        raise TokenizerError(f"{vocab_path}: {error}") from None
