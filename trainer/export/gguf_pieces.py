"""A SentencePiece vocabulary as GGUF's metadata: llama.cpp merges by the scores of pieces."""

from gguf import GGUFWriter, TokenType

from shared.bpe import TokenizerError, Vocabulary
from shared.bpe.formats.piece_scores import scores_by_rank
from shared.bpe.patterns.named import BEFORE_SPACES
from shared.bpe.piece_spelling import BYTE_PIECES, to_piece
from trainer.errors import TrainerError


def add_pieces(writer: GGUFWriter, vocabulary: Vocabulary, size: int) -> list[str]:
    """Add the tokens with their scores and types, and what becomes of spaces.

    Args:
        writer: The file.
        vocabulary: With byte fallback.
        size: Rows of the embedding.

    Returns:
        What llama.cpp does differently, as readable sentences.

    Raises:
        TrainerError: llama.cpp gives other ids; names the piece.
    """
    pieces = {token: to_piece(data) for token, data in vocabulary.tokens.items()}
    within = [data for data in vocabulary.tokens.values() if b" " in data[1:]]
    if vocabulary.pattern == BEFORE_SPACES and within:
        raise TrainerError(f"the tokenizer splits text before every space, and llama.cpp would make {within[0]!r}")
    try:
        scores = scores_by_rank(pieces.values(), [(pieces[left], pieces[right]) for left, right in vocabulary.merges])
    except TokenizerError as error:
        raise TrainerError(f"{error}, which llama.cpp would make") from error
    texts = pieces | dict(zip(vocabulary.byte_tokens, BYTE_PIECES, strict=True))
    kinds = dict.fromkeys(pieces, TokenType.NORMAL) | dict.fromkeys(vocabulary.byte_tokens, TokenType.BYTE)
    for added in vocabulary.added:
        texts[added.id] = added.content
        kinds[added.id] = TokenType.CONTROL if added.special else TokenType.USER_DEFINED
        if added.content == "<unk>":
            kinds[added.id] = TokenType.UNKNOWN
    for row in range(size):
        if row not in texts:
            texts[row], kinds[row] = f"[PAD{row}]", TokenType.UNUSED
    lowest = -float(len(scores))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([texts[row] for row in range(size)])
    # Single characters are never made by merges, so that their scores mean nothing.
    normal = {token: scores.get(piece, lowest) for token, piece in pieces.items()}
    writer.add_token_scores([normal.get(row, 0.0) for row in range(size)])
    writer.add_token_types([kinds[row] for row in range(size)])
    writer.add_add_space_prefix(vocabulary.prefix_space or vocabulary.prepended_space)
    if vocabulary.prefix_space:
        return ["llama.cpp puts a space before every text, also before one that begins with a space"]
    return []
