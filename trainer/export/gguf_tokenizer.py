"""The tokenizer of a model as GGUF's metadata, where llama.cpp gives the same ids."""

from gguf import GGUFWriter, TokenType

from shared.bpe import Tokenizer
from shared.bpe.byte_alphabet import to_printable
from shared.bpe.patterns.named import PATTERNS, split
from shared.bpe.vocabulary import Vocabulary
from shared.lm.description import ModelDescription
from trainer.errors import TrainerError
from trainer.export.gguf_pieces import add_pieces

# llama.cpp's names of pretokenizers with the same matches, and whether it takes a pretoken that is a token as it is.
# Its names for cl100k and o200k match other text: white space at a text's end, and letters that are not ASCII.
_PRETOKENIZERS = {"gpt2": ("gpt-2", False), "llama3": ("llama-bpe", True), "qwen": ("qwen2", False)}


def add_tokenizer(writer: GGUFWriter, model: ModelDescription) -> list[str]:
    """Add vocabulary, merges and special tokens.

    Returns:
        What llama.cpp does differently, as readable sentences.

    Raises:
        TrainerError: llama.cpp gives other ids; names what it cannot do.
    """
    vocabulary, size = model.tokenizer.vocabulary, model.config.vocab_size
    add = add_pieces if vocabulary.byte_tokens else _add_byte_level
    stripping = [token.content for token in vocabulary.added if token.lstrip or token.rstrip]
    if stripping:
        raise TrainerError(
            f"the added token {stripping[0]!r} strips white space around it, which a GGUF file cannot express"
        )
    notes = add(writer, vocabulary, size)
    _add_ends(writer, model)
    return notes + _notes(model)


def _add_byte_level(writer: GGUFWriter, vocabulary: Vocabulary, size: int) -> list[str]:
    """As `add_pieces`."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pretokenizer(vocabulary))
    texts, kinds = _entries(vocabulary, size)
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    printable = {token: to_printable(data) for token, data in vocabulary.tokens.items()}
    writer.add_token_merges([f"{printable[left]} {printable[right]}" for left, right in vocabulary.merges])
    return []


def _pretokenizer(vocabulary: Vocabulary) -> str:
    names = {PATTERNS[name]: name for name in _PRETOKENIZERS}
    name = names.get(vocabulary.pattern)
    if name is None:
        known = {expression: name for name, expression in PATTERNS.items()}
        shown = known.get(vocabulary.pattern, "a pattern of its own")
        raise TrainerError(
            f"the tokenizer splits text by {shown}, which llama.cpp does not have: it has {', '.join(_PRETOKENIZERS)}"
        )
    if vocabulary.prefix_space or vocabulary.prepended_space:
        raise TrainerError("the tokenizer puts a space before a text, which llama.cpp does not do for byte-level BPE")
    theirs, takes_whole = _PRETOKENIZERS[name]
    if takes_whole != vocabulary.ignore_merges and (different := _not_merged_to_itself(vocabulary)):
        raise TrainerError(
            f"{len(different)} tokens such as {different[0]!r} are not what their own merges give, and llama.cpp's "
            f"{theirs} {'takes' if takes_whole else 'does not take'} such pretokens as they are"
        )
    return theirs


def _not_merged_to_itself(vocabulary: Vocabulary) -> list[str]:
    """Tokens that are one pretoken each, and that merges do not give for their own text."""
    merged = Tokenizer(_without_ignoring(vocabulary))
    different = []
    for token, data in vocabulary.tokens.items():
        try:
            text = data.decode()
        except UnicodeDecodeError:  # no text is such a pretoken
            continue
        if split(vocabulary.pattern, text) == [text] and merged.encode(text) != [token]:
            different.append(text)
    return different


def _without_ignoring(vocabulary: Vocabulary) -> Vocabulary:
    return Vocabulary(tokens=vocabulary.tokens, merges=vocabulary.merges, added=(), pattern=vocabulary.pattern)


def _entries(vocabulary: Vocabulary, size: int) -> tuple[list[str], list[TokenType]]:
    texts = {token: to_printable(data) for token, data in vocabulary.tokens.items()}
    kinds = dict.fromkeys(texts, TokenType.NORMAL)
    for added in vocabulary.added:
        texts[added.id] = added.content
        kinds[added.id] = TokenType.CONTROL if added.special else TokenType.USER_DEFINED
    for row in range(size):
        if row not in texts:
            texts[row], kinds[row] = f"[PAD{row}]", TokenType.UNUSED
    return [texts[row] for row in range(size)], [kinds[row] for row in range(size)]


def _add_ends(writer: GGUFWriter, model: ModelDescription) -> None:
    vocabulary, eos = model.tokenizer.vocabulary, model.generation.eos_token_ids
    if not eos:
        raise TrainerError(
            "the model has no end-of-text token, and llama.cpp would end at token 11: name one as eos_token_id in "
            "generation_config.json"
        )
    writer.add_eos_token_id(eos[0])
    if len(eos) > 1:
        writer.add_eot_token_id(eos[1])
    bos = model.tokenizer.bos_id
    if bos is not None:
        writer.add_bos_token_id(bos)
    if vocabulary.prefix not in ((), (bos,)) or vocabulary.suffix not in ((), (eos[0],)):
        raise TrainerError("the tokenizer puts other tokens around a text than those that begin and end it")
    writer.add_add_bos_token(bool(vocabulary.prefix))
    writer.add_add_eos_token(bool(vocabulary.suffix))


def _notes(model: ModelDescription) -> list[str]:
    notes = []
    if model.tokenizer.vocabulary.nfc:
        notes.append("llama.cpp does not normalize text to NFC: other forms of accented letters give other ids there")
    if len(model.generation.eos_token_ids) > 2:
        others = ", ".join(map(str, model.generation.eos_token_ids[2:]))
        notes.append(f"a GGUF file names two tokens that end a text; of {others}, llama.cpp knows only some by name")
    return notes
