"""Prompts: from text or token ids to what the engine runs."""

from dataclasses import dataclass

from services.inference.generation.loading import ServedModel
from services.inference.generation.request import GenerationRequest
from shared.bpe import StreamDecoder, Tokenizer, TokenizerError
from shared.http import ApiError


@dataclass(frozen=True)
class Prompt:
    """A prompt that was checked and encoded.

    Attributes:
        ids: Its tokens, at least one, and after them those of the answer that the request has given.
        text: What is put before a choice that echoes it.
        offsets: Where each token starts in `text`, in characters; empty unless requested.
        num_given: Tokens of the answer among `ids`.
        has_text: Whether the tokens before the answer are not all special ones.
    """

    ids: tuple[int, ...]
    text: str
    offsets: tuple[int, ...]
    num_given: int = 0
    has_text: bool = True


def read_prompts(request: GenerationRequest, model: ServedModel) -> list[Prompt]:
    """Encode a request's prompts, once the lengths of all of them may fit into the context.

    Raises:
        ApiError: 400, with the prompt, the limit and the value.
    """
    prompts = request.prompts
    if not prompts:
        raise ApiError(400, "prompt: the list is empty", param="prompt", code="empty_prompt")
    field = request.prompt_field
    fields = [field] if len(prompts) == 1 else [f"{field}[{index}]" for index in range(len(prompts))]
    for prompt, field in zip(prompts, fields, strict=True):
        if isinstance(prompt, str):
            _check_length(_fewest_tokens(prompt, request, model), field, request, model, counted="at least ")
        else:
            _check_length(len(prompt), field, request, model)
    return [_prompt(prompt, field, request, model) for prompt, field in zip(prompts, fields, strict=True)]


def _fewest_tokens(text: str, request: GenerationRequest, model: ServedModel) -> int:
    try:
        return model.tokenizer.token_lower_bound(text, allowed_special=request.text_options["allowed_special"])
    except TokenizerError as error:
        raise ApiError(400, str(error), param="allowed_special") from error


def _prompt(prompt: str | list[int], field: str, request: GenerationRequest, model: ServedModel) -> Prompt:
    wants_offsets = request.echoes and request.num_prompt_logprobs is not None
    try:
        if isinstance(prompt, str):
            ids, text, offsets = _encode(prompt, request, model.tokenizer, wants_offsets=wants_offsets)
        else:
            ids, text = prompt, model.tokenizer.decode(prompt)  # raises for invalid ids
            offsets = _offsets(ids, model.tokenizer) if wants_offsets else []
    except TokenizerError as error:
        raise ApiError(400, f"{field}: {error}", param=field) from error
    if not ids:
        message = f"{field}: empty, and the tokenizer adds no begin-of-text token to start from"
        raise ApiError(400, message, param=field, code="empty_prompt")
    _check_length(len(ids), field, request, model)
    given = request.given_tokens
    try:
        model.tokenizer.decode_bytes(given)
    except TokenizerError as error:
        raise ApiError(400, f"continue_tokens: {error}", param="continue_tokens") from error
    return Prompt((*ids, *given), text, tuple(offsets), len(given), model.tokenizer.have_text(ids))


def _encode(
    text: str, request: GenerationRequest, tokenizer: Tokenizer, *, wants_offsets: bool
) -> tuple[list[int], str, list[int]]:
    if not wants_offsets:
        return tokenizer.encode(text, **request.text_options), text, []
    pieces = tokenizer.encode_with_offsets(text, **request.text_options)
    return [piece.id for piece in pieces], text, [piece.start for piece in pieces]


def _offsets(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """Where each token starts in the decoded text: inside a character, where that character starts."""
    decoder = StreamDecoder(tokenizer, skip_special_tokens=False)
    offsets = []
    for token in ids:
        decoder.feed(token)
        offsets.append(decoder.start)
    return offsets


def _check_length(
    number: int, field: str, request: GenerationRequest, model: ServedModel, *, counted: str = ""
) -> None:
    # A prompt that fills the context can be scored, but not continued.
    limit = model.context_length - (request.token_limit != 0)
    if number > limit:
        message = (
            f"{field}: {counted}{number} tokens exceed the limit of {limit} "
            f"(context length {model.context_length}, shared by prompt and generated text)"
        )
        raise ApiError(400, message, param=field, code="context_length_exceeded")
