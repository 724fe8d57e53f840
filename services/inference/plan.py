"""From a request to the rows that the engine runs: defaults filled in, the prompt encoded, limits kept."""

import hashlib
import secrets
from dataclasses import dataclass, replace

from services.inference.engine import RowRequest
from services.inference.loading import ServedModel
from services.inference.schemas import GenerateRequest
from services.inference.settings import InferenceSettings
from shared.bpe import TokenizerError
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
class Plan:
    """What a request comes down to.

    Attributes:
        rows: One for each choice; empty where no token is to be generated.
        num_choices: How many choices to answer with.
        num_prompt_tokens: Tokens of the prompt.
        seed: The seed that the rows' seeds are made from.
        stops: Stop strings.
        special_stops: Those of them that are special tokens, by id: their text is never generated as text.
        echo: What each choice's text begins with.
    """

    rows: list[RowRequest]
    num_choices: int
    num_prompt_tokens: int
    seed: int
    stops: list[str]
    special_stops: dict[int, str]
    echo: str


def make_plan(request: GenerateRequest, model: ServedModel, settings: InferenceSettings) -> Plan:
    """Check a request against the model and the limits. Takes a while for a long prompt.

    Raises:
        ApiError: 400, naming the field, the limit and the value got.
    """
    num_choices = 1 if request.n is None else request.n
    if num_choices > settings.max_choices:
        raise ApiError(400, f"n: {num_choices} choices, the limit is {settings.max_choices}", param="n")
    prompt_ids = _encode_prompt(request, model)
    max_tokens = _max_tokens(request, len(prompt_ids), model.context_length, settings.default_max_tokens)
    seed = secrets.randbits(_RANDOM_SEED_BITS) if request.seed is None else request.seed
    special = model.tokenizer.special_tokens
    special_stops = {special[stop]: stop for stop in request.stops if stop in special}
    stop_ids = frozenset(special_stops) | (
        frozenset() if request.ignore_eos else frozenset(model.generation.eos_token_ids)
    )
    params = _sampling_params(request, model)
    rows = [
        RowRequest(
            prompt_ids=tuple(prompt_ids),
            params=replace(params, seed=choice_seed(seed, index)),
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            num_logprobs=request.logprobs,
        )
        for index in range(num_choices if max_tokens else 0)
    ]
    return Plan(
        rows=rows,
        num_choices=num_choices,
        num_prompt_tokens=len(prompt_ids),
        seed=seed,
        stops=request.stops,
        special_stops=special_stops,
        echo=_echo(request, model),
    )


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index`: the request's own for the first, 63 bits of a hash for the others."""
    if index == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{index}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


def _encode_prompt(request: GenerateRequest, model: ServedModel) -> list[int]:
    try:
        if isinstance(request.prompt, str):
            ids = model.tokenizer.encode(request.prompt, add_special_tokens=True)
        else:
            ids = request.prompt
            model.tokenizer.decode_bytes(ids)  # refuses ids that the tokenizer does not have
    except TokenizerError as error:
        raise ApiError(400, f"prompt: {error}", param="prompt") from error
    if not ids:
        message = "prompt: it is empty, and this model has no begin-of-text token to start from"
        raise ApiError(400, message, param="prompt", code="empty_prompt")
    if len(ids) >= model.context_length:
        message = (
            f"prompt: {len(ids)} tokens, the limit is {model.context_length - 1}: "
            f"prompt and answer share a context of {model.context_length} tokens"
        )
        raise ApiError(400, message, param="prompt", code="context_length_exceeded")
    return ids


def _max_tokens(request: GenerateRequest, num_prompt_tokens: int, context_length: int, default: int) -> int:
    room = context_length - num_prompt_tokens
    if request.max_tokens is None:
        return min(default, room)
    if request.max_tokens > room:
        message = (
            f"max_tokens: {request.max_tokens} tokens, the limit is {room}: "
            f"{context_length} of the context less {num_prompt_tokens} of the prompt"
        )
        raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")
    return request.max_tokens


def _sampling_params(request: GenerateRequest, model: ServedModel) -> SamplingParams:
    given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(request, name)) is not None}
    return replace(model.generation.params(seed=0), **given)


def _echo(request: GenerateRequest, model: ServedModel) -> str:
    if not request.echo:
        return ""
    return request.prompt if isinstance(request.prompt, str) else model.tokenizer.decode(request.prompt)
