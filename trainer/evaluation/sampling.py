"""Text from a model: for the terminal, for the samples of a run, and for its report."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from torch import Tensor

from shared.bpe import StreamDecoder, Tokenizer
from shared.lm import SamplingParams, Transformer, generate, load_model_folder
from trainer.compute.device import choose_device
from trainer.errors import UsageError


def encode_prompt(tokenizer: Tokenizer, prompt: str, context_length: int) -> list[int]:
    """The prompt's ids, with those that the tokenizer puts around a text, as the services encode it.

    An empty prompt becomes the begin-of-text id, or else the end-of-text id, after which a document begins.

    Raises:
        UsageError: the prompt fills the context, or is empty and the tokenizer has no end-of-text id.
    """
    if not prompt:
        start = tokenizer.end_of_text_id if tokenizer.bos_id is None else tokenizer.bos_id
        if start is None:
            raise UsageError(
                "the prompt is empty, and this tokenizer has no end-of-text token to start from: give a prompt"
            )
        return [start]
    ids = tokenizer.encode(prompt, add_special_tokens=True)
    if len(ids) >= context_length:
        raise UsageError(
            f"need a prompt of at most {context_length - 1} tokens, one less than the context; found {len(ids)}"
        )
    return ids


def sample_text(
    model: Transformer,
    tokenizer: Tokenizer,
    ids: Sequence[int],
    params: SamplingParams,
    *,
    max_tokens: int,
    eos_token_ids: Collection[int],
    valid_tokens: Tensor,
) -> Iterator[str]:
    """What a model writes after some ids, piece by piece; special tokens are left out.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        ids: From `encode_prompt`.
        params: How tokens are sampled.
        max_tokens: The most tokens to write.
        eos_token_ids: The ids that end the text.
        valid_tokens: bool [vocab_size], the ids that have a token.

    Raises:
        SamplingError: the model gives no finite probabilities.
    """
    decoder = StreamDecoder(tokenizer, skip_special_tokens=True, continues=tokenizer.have_text(ids))
    for token in generate(
        model, ids, params, max_tokens=max_tokens, eos_token_ids=eos_token_ids, valid_tokens=valid_tokens
    ):
        yield decoder.feed(token)
    yield decoder.finish()


def stream_text(
    path: Path,
    prompt: str,
    *,
    max_tokens: int,
    seed: int,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    device: str = "auto",
) -> Iterator[str]:
    """The prompt, then its continuation piece by piece as the model writes it.

    Args:
        path: A model folder.
        prompt: The beginning of the text.
        max_tokens: The most tokens to write.
        seed: Of the random numbers.
        temperature: None takes the folder's default, as for the next two.
        top_p: See `SamplingParams`.
        top_k: See `SamplingParams`.
        device: A device's name, or `auto`.

    Raises:
        ModelFolderError: the folder cannot be used.
        SamplingError: a parameter is out of range.
        UsageError: `max_tokens` is negative; see also `encode_prompt`, `choose_device`.
    """
    if max_tokens < 0:
        raise UsageError(f"--max-tokens must be at least 0; got {max_tokens}")
    folder = load_model_folder(path, device=choose_device(device).torch_device, research=True)
    defaults = folder.generation
    params = SamplingParams(
        temperature=defaults.temperature if temperature is None else temperature,
        top_p=defaults.top_p if top_p is None else top_p,
        top_k=defaults.top_k if top_k is None else top_k,
        seed=seed,
    )
    ids = encode_prompt(folder.tokenizer, prompt, folder.config.context_length)
    yield prompt
    yield from sample_text(
        folder.model,
        folder.tokenizer,
        ids,
        params,
        max_tokens=max_tokens,
        eos_token_ids=defaults.eos_token_ids,
        valid_tokens=folder.valid_tokens,
    )
