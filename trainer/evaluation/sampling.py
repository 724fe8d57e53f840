"""Text from a model: for the terminal, and for a look at a model in training."""

from collections.abc import Iterator
from pathlib import Path

from shared.bpe import StreamDecoder, Tokenizer
from shared.lm import SamplingParams, generate, load_model_folder
from trainer.compute.device import choose_device
from trainer.errors import UsageError


def encode_prompt(tokenizer: Tokenizer, prompt: str, context_length: int) -> list[int]:
    """The prompt's ids; an empty prompt becomes the end-of-text id, after which a document begins.

    Raises:
        UsageError: the prompt leaves no room in the context, or is empty and the tokenizer has no end-of-text id.
    """
    if not prompt:
        if tokenizer.end_of_text_id is None:
            raise UsageError(
                "the prompt is empty, and this tokenizer has no end-of-text id to begin from: give a prompt"
            )
        return [tokenizer.end_of_text_id]
    ids = tokenizer.encode(prompt)
    if len(ids) >= context_length:
        raise UsageError(
            f"the prompt has {len(ids)} tokens; the model's context of {context_length} must hold one more"
        )
    return ids


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
        prompt: What the text begins with.
        max_tokens: The most tokens to write.
        seed: Decides the draws.
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
    decoder = StreamDecoder(folder.tokenizer, skip_special_tokens=True)
    for token in generate(
        folder.model,
        ids,
        params,
        max_tokens=max_tokens,
        eos_token_ids=defaults.eos_token_ids,
        valid_tokens=folder.valid_tokens,
    ):
        yield decoder.feed(token)
    yield decoder.finish()
