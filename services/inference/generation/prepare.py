"""From a request to the rows that the engine runs: defaults filled in, prompts encoded, limits kept."""

import hashlib
import secrets
from dataclasses import dataclass, replace

from services.inference.api.fields import ContinuationRequest
from services.inference.engine import SequenceRequest
from services.inference.generation.loading import ServedModel
from services.inference.generation.prompts import Prompt, read_prompts
from services.inference.generation.stop_strings import StopStrings
from services.inference.settings import InferenceSettings
from shared.http import ApiError, request_started
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
    rows: list[SequenceRequest]
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
    _check_agreement(request)
    prompts = read_prompts(request, model)
    seed = secrets.randbits(_RANDOM_SEED_BITS) if request.seed is None else request.seed
    special = model.tokenizer.special_tokens
    special_stops = {special[stop]: stop for stop in request.stops if stop in special}
    params = _sampling_params(request, model)
    stop_ids = frozenset(special_stops) | frozenset(_stop_token_ids(request, model))
    if not request.ignore_eos:
        stop_ids |= frozenset(model.generation.eos_token_ids)
    template = SequenceRequest(
        prompt_ids=(0,),
        params=params,
        max_tokens=0,
        stop_ids=stop_ids,
        num_logprobs=request.logprobs,
        min_tokens=request.min_tokens or 0,
        num_prompt_logprobs=request.num_prompt_logprobs,
        arrived_at=request_started(),
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


def _check_agreement(request: ContinuationRequest) -> None:
    """Refuse a second name that asks for something else than the first."""
    if request.best_of not in (None, request.num_choices):
        message = f"best_of: all answers are returned, so it can only be n, which is {request.num_choices}"
        raise ApiError(400, f"{message} (got {request.best_of})", param="best_of")
    if request.max_completion_tokens not in (None, request.max_tokens):
        message = f"max_completion_tokens: only as much as max_tokens (got {request.max_completion_tokens})"
        raise ApiError(400, message, param="max_completion_tokens")


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
