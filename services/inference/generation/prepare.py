"""From a request to the sequences that the engine runs: defaults filled in, prompts encoded, limits checked."""

import hashlib
import secrets
from dataclasses import dataclass, replace
from functools import cached_property

from services.inference.engine import SequenceRequest
from services.inference.generation.loading import ServedModel
from services.inference.generation.prompts import Prompt, read_prompts
from services.inference.generation.request import GenerationRequest
from services.inference.generation.stop_strings import StopStrings
from services.inference.settings import InferenceSettings
from shared.http import ApiError, request_started, short_json
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
_SEED_BITS = 53  # every JSON parser keeps these integers exactly, also JavaScript's


@dataclass(frozen=True)
class PreparedRequest:
    """A request that was checked and encoded. Choices are numbered prompt by prompt: `prompt * n + choice`.

    Attributes:
        request: What the client sent.
        prompts: At least one.
        sequences: One for each choice; empty where there is nothing to run.
        seed: The seed that the sequences' seeds are derived from.
        stops: Stop strings.
        special_stops: Those of them that are special tokens, by id: their text is never generated as text.
    """

    request: GenerationRequest
    prompts: list[Prompt]
    sequences: list[SequenceRequest]
    seed: int
    stops: StopStrings
    special_stops: dict[int, str]

    @property
    def num_choices(self) -> int:
        """Choices in the response, all prompts together."""
        return len(self.prompts) * self.request.num_choices

    @cached_property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(prompt.ids) for prompt in self.prompts)

    def prompt_index(self, choice: int) -> int:
        """The index of the prompt that a choice continues."""
        return choice // self.request.num_choices

    def prompt_of(self, choice: int) -> Prompt:
        """The prompt that a choice continues."""
        return self.prompts[self.prompt_index(choice)]


def check_num_sequences(request: GenerationRequest, settings: InferenceSettings) -> int:
    """Return how many sequences a request has.

    Raises:
        ApiError: 400, if it has more than can ever run or wait here.
    """
    if request.num_choices > settings.max_choices:
        choices = short_json(request.num_choices)
        message = f"n: {choices} exceeds the limit of {settings.max_choices} (OWNLM_MAX_CHOICES)"
        raise ApiError(400, message, param="n")
    prompts, limit = len(request.prompts), settings.max_batch + settings.max_queue
    if prompts * request.num_choices > limit:
        message = (
            f"prompt: {prompts * request.num_choices} sequences ({prompts} prompts with {request.num_choices} choices "
            f"each) exceed the limit of {limit} (OWNLM_MAX_BATCH + OWNLM_MAX_QUEUE); send them in several requests"
        )
        raise ApiError(400, message, param="prompt", code="too_many_prompts")
    return prompts * request.num_choices


def prepare_request(request: GenerationRequest, model: ServedModel, default_max_tokens: int) -> PreparedRequest:
    """Check a request against the model, and encode its prompts. Takes a while for a long prompt.

    Raises:
        ApiError: 400, with the field, the limit and the value.
    """
    _check_together(request)
    prompts = read_prompts(request, model)
    seed = secrets.randbits(_SEED_BITS) if request.seed is None else request.seed
    special = model.tokenizer.special_tokens
    special_stops = {special[stop]: stop for stop in request.stops if stop in special}
    params = _sampling_params(request, model, seed)
    stop_ids = _stop_ids(request, model).union(special_stops)
    limits = [_max_tokens(request, prompt, model.context_length, default_max_tokens) for prompt in prompts]
    # One object for each choice, however many prompts share it: it is checked once, and sent to the worker once.
    seeded = [replace(params, seed=each) for each in choice_seeds(seed, request.num_choices)]
    sequences = [
        SequenceRequest(
            prompt_ids=prompt.ids,
            params=choice_params,
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            num_logprobs=request.num_logprobs,
            min_tokens=request.min_tokens or 0,
            num_prompt_logprobs=request.num_prompt_logprobs,
            arrived_at=request_started(),
            num_given=prompt.num_given,
        )
        for prompt, max_tokens in zip(prompts, limits, strict=True)
        for choice_params in seeded
        if max_tokens or request.num_prompt_logprobs is not None
    ]
    return PreparedRequest(request, prompts, sequences, seed, StopStrings(request.stops), special_stops)


def choice_seeds(seed: int, num_choices: int) -> list[int]:
    """The seeds of a prompt's choices: the request's for the first, 53 bits of a hash of it for each other."""
    digests = (hashlib.sha256(f"{seed}/{index}".encode()).digest() for index in range(1, num_choices))
    return [seed, *(int.from_bytes(digest[:8]) >> (64 - _SEED_BITS) for digest in digests)]


def _check_together(request: GenerationRequest) -> None:
    """Refuse fields that contradict each other."""
    if request.best_of not in (None, request.num_choices):
        message = f"best_of: all choices are returned, so it must equal n, which is {request.num_choices}"
        raise ApiError(400, f"{message} (got {short_json(request.best_of)})", param="best_of")
    if request.max_completion_tokens not in (None, request.token_limit):
        message = f"max_completion_tokens: must equal max_tokens (got {short_json(request.max_completion_tokens)})"
        raise ApiError(400, message, param="max_completion_tokens")
    if not request.given_tokens:
        return
    if request.echoes:
        raise ApiError(400, "echo: not possible with continue_tokens, whose text is not returned", param="echo")
    if len(request.prompts) > 1:
        message = f"continue_tokens: they are of one prompt's answer (got {len(request.prompts)} prompts)"
        raise ApiError(400, message, param="continue_tokens")


def _max_tokens(request: GenerationRequest, prompt: Prompt, context_length: int, default: int) -> int:
    """How many tokens to generate: what is left of `max_tokens` after those that are given."""
    num_prompt_tokens = len(prompt.ids) - prompt.num_given
    room = context_length - num_prompt_tokens
    max_tokens = min(default, room) if request.token_limit is None else request.token_limit
    if max_tokens > room:
        message = (
            f"max_tokens: {short_json(max_tokens)} exceeds the limit of {room} "
            f"(context length {context_length}, prompt {num_prompt_tokens} tokens)"
        )
        raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")
    if (request.min_tokens or 0) > max_tokens:
        message = f"min_tokens: {short_json(request.min_tokens)} exceeds max_tokens ({max_tokens})"
        raise ApiError(400, message, param="min_tokens")
    if prompt.num_given > max_tokens:
        message = f"continue_tokens: {prompt.num_given} tokens exceed max_tokens ({max_tokens}), which includes them"
        raise ApiError(400, message, param="continue_tokens")
    return max_tokens - prompt.num_given


def _stop_ids(request: GenerationRequest, model: ServedModel) -> frozenset[int]:
    ids = request.stop_token_ids or []
    for index, token in enumerate(ids):
        if token >= model.config.vocab_size:
            field = f"stop_token_ids[{index}]"
            raise ApiError(400, f"{field}: {_unknown_token(token, model)}", param=field)
    return frozenset(ids if request.ignore_eos else (*ids, *model.defaults.eos_token_ids, *request.ending_tokens))


def _sampling_params(request: GenerationRequest, model: ServedModel, seed: int) -> SamplingParams:
    given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(request, name)) is not None}
    biases = tuple((int(name), bias) for name, bias in (request.logit_bias or {}).items())
    for token, _ in biases:
        if token >= model.config.vocab_size:
            raise ApiError(400, f"logit_bias: {_unknown_token(token, model)}", param="logit_bias")
    return replace(model.defaults.params(seed=seed), logit_bias=biases, **given)


def _unknown_token(token: int, model: ServedModel) -> str:
    return f"{short_json(token)} is not a token id; ids go from 0 to {model.config.vocab_size - 1}"
