"""From a request to the rows that the engine runs: defaults filled in, prompts encoded, limits kept."""

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from services.inference.engine import RowRequest
from services.inference.fields import ContinuationRequest
from services.inference.loading import ServedModel
from services.inference.settings import InferenceSettings
from services.inference.stopping import StopStrings
from shared.bpe import StreamDecoder, TokenizerError
from shared.http import ApiError
from shared.lm import SamplingParams

_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_RANDOM_SEED_BITS = 53  # what every JSON reader keeps exactly, JavaScript's included


@dataclass(frozen=True)
class Prompt:
    """A prompt that was checked.

    Attributes:
        ids: Its tokens, at least one.
        text: What an answer that echoes it begins with.
        offsets: Where each token begins in `text`, in characters; empty where nobody asks.
    """

    ids: tuple[int, ...]
    text: str
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """What a request comes down to. Choices are numbered prompt by prompt: `prompt * n + choice`.

    Attributes:
        prompts: At least one.
        num_choices: How many choices to answer with, all prompts together.
        rows: One for each choice; empty where there is nothing to run.
        seed: The seed that the rows' seeds are made from.
        stops: Stop strings.
        special_stops: Those of them that are special tokens, by id: their text is never generated as text.
        min_tokens: Tokens before which stop strings are not looked for.
        echo: Whether answers begin with their prompt.
    """

    prompts: list[Prompt]
    num_choices: int
    rows: list[RowRequest]
    seed: int
    stops: StopStrings
    special_stops: dict[int, str]
    min_tokens: int
    echo: bool

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(prompt.ids) for prompt in self.prompts)

    def prompt_number(self, choice: int) -> int:
        """The place of the prompt that a choice continues."""
        return choice * len(self.prompts) // self.num_choices

    def prompt_of(self, choice: int) -> Prompt:
        """The prompt that a choice continues."""
        return self.prompts[self.prompt_number(choice)]


def count_rows(request: ContinuationRequest, settings: InferenceSettings) -> int:
    """How many sequences a request is.

    Raises:
        ApiError: 400 where it is more than can ever run or wait here.
    """
    if request.num_choices > settings.max_choices:
        message = f"n: {request.num_choices} choices, the limit is {settings.max_choices} (OWNLM_MAX_CHOICES)"
        raise ApiError(400, message, param="n")
    prompts, limit = len(request.prompts), settings.max_batch + settings.max_queue
    if prompts * request.num_choices > limit:
        message = (
            f"prompt: {prompts} prompts with {request.num_choices} choices each are {prompts * request.num_choices} "
            f"sequences, the limit is {limit} (OWNLM_MAX_BATCH and OWNLM_MAX_QUEUE): send them in several requests"
        )
        raise ApiError(400, message, param="prompt", code="too_many_prompts")
    return prompts * request.num_choices


def make_plan(
    request: ContinuationRequest, model: ServedModel, settings: InferenceSettings, default_max_tokens: int
) -> Plan:
    """Check a request against the model and the limits. Takes a while for a long prompt.

    Raises:
        ApiError: 400, naming the field, the limit and the value got.
    """
    count_rows(request, settings)
    if not request.prompts:
        raise ApiError(400, "prompt: the list is empty", param="prompt", code="empty_prompt")
    prompts = [_prompt(prompt, f"prompt{place}", request, model) for prompt, place in _with_places(request.prompts)]
    seed = secrets.randbits(_RANDOM_SEED_BITS) if request.seed is None else request.seed
    special = model.tokenizer.special_tokens
    special_stops = {special[stop]: stop for stop in request.stops if stop in special}
    params = _sampling_params(request, model)
    stop_ids = frozenset(special_stops) | frozenset(_stop_token_ids(request, model))
    if not request.ignore_eos:
        stop_ids |= frozenset(model.generation.eos_token_ids)
    template = RowRequest(
        prompt_ids=(0,),
        params=params,
        max_tokens=0,
        stop_ids=stop_ids,
        num_logprobs=request.logprobs,
        min_tokens=request.min_tokens or 0,
        num_prompt_logprobs=request.num_prompt_logprobs,
    )
    # Checked once, and sent to the model's process once, however many rows share them.
    seeded = [replace(params, seed=choice_seed(seed, index)) for index in range(request.num_choices)]
    limits = [_max_tokens(request, len(prompt.ids), model.context_length, default_max_tokens) for prompt in prompts]
    return Plan(
        prompts=prompts,
        num_choices=len(prompts) * request.num_choices,
        rows=[
            replace(template, prompt_ids=prompt.ids, max_tokens=max_tokens, params=choice_params)
            for prompt, max_tokens in zip(prompts, limits, strict=True)
            for choice_params in seeded
            if max_tokens or request.num_prompt_logprobs is not None
        ],
        seed=seed,
        stops=StopStrings(request.stops),
        special_stops=special_stops,
        min_tokens=template.min_tokens,
        echo=bool(request.echo),
    )


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index` of a prompt: the request's own for the first, 63 bits of a hash for the others."""
    if index == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{index}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


def _with_places(prompts: Sequence[str | list[int]]) -> Iterable[tuple[str | list[int], str]]:
    """Each prompt with its place in the request, where there are several."""
    return zip(prompts, [""] if len(prompts) == 1 else [f"[{index}]" for index in range(len(prompts))], strict=True)


def _prompt(prompt: str | list[int], field: str, request: ContinuationRequest, model: ServedModel) -> Prompt:
    is_text = isinstance(prompt, str)
    try:
        ids = model.tokenizer.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
        _check_length(len(ids), field, request, model)
        text = prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt)  # refuses ids that are no tokens
    except TokenizerError as error:
        raise ApiError(400, f"{field}: {error}", param=field) from error
    wants_offsets = request.echo and request.num_prompt_logprobs is not None
    offsets = _offsets(ids, len(text), model, skip_special_tokens=is_text) if wants_offsets else ()
    return Prompt(tuple(ids), text, offsets)


def _check_length(number: int, field: str, request: ContinuationRequest, model: ServedModel) -> None:
    if number == 0:
        message = f"{field}: it is empty, and this model has no begin-of-text token to start from"
        raise ApiError(400, message, param=field, code="empty_prompt")
    # A prompt that fills the context can be scored and not continued.
    limit = model.context_length - (request.max_tokens != 0)
    if number > limit:
        message = (
            f"{field}: {number} tokens, the limit is {limit}: "
            f"prompt and answer share a context of {model.context_length} tokens"
        )
        raise ApiError(400, message, param=field, code="context_length_exceeded")


def _offsets(ids: list[int], length: int, model: ServedModel, *, skip_special_tokens: bool) -> tuple[int, ...]:
    """Where each token begins in the decoded text; one inside a character, where that character begins."""
    decoder = StreamDecoder(model.tokenizer, skip_special_tokens=skip_special_tokens)
    offsets, position = [], 0
    for token in ids:
        offsets.append(min(position, length))
        position += len(decoder.feed(token))
    return tuple(offsets)


def _max_tokens(request: ContinuationRequest, num_prompt_tokens: int, context_length: int, default: int) -> int:
    room = context_length - num_prompt_tokens
    max_tokens = min(default, room) if request.max_tokens is None else request.max_tokens
    if max_tokens > room:
        message = (
            f"max_tokens: {max_tokens} tokens, the limit is {room}: "
            f"{context_length} of the context less {num_prompt_tokens} of the prompt"
        )
        raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")
    if (request.min_tokens or 0) > max_tokens:
        message = f"min_tokens: {request.min_tokens} tokens, the limit is the {max_tokens} of max_tokens"
        raise ApiError(400, message, param="min_tokens")
    return max_tokens


def _stop_token_ids(request: ContinuationRequest, model: ServedModel) -> list[int]:
    ids = request.stop_token_ids or []
    for index, token in enumerate(ids):
        if token >= model.config.vocab_size:
            field = f"stop_token_ids[{index}]"
            raise ApiError(400, f"{field}: {_no_token(token, model)}", param=field)
    return ids


def _sampling_params(request: ContinuationRequest, model: ServedModel) -> SamplingParams:
    given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(request, name)) is not None}
    biases = tuple((int(name), bias) for name, bias in (request.logit_bias or {}).items())
    for token, _ in biases:
        if token >= model.config.vocab_size:
            raise ApiError(400, f"logit_bias: {_no_token(token, model)}", param="logit_bias")
    return replace(model.generation.params(seed=0), logit_bias=biases, **given)


def _no_token(token: int, model: ServedModel) -> str:
    shown = token if token.bit_length() <= 64 else f"a number of {token.bit_length()} bits"
    return f"{shown} is no token, ids go from 0 to {model.config.vocab_size - 1}"
