"""Meta's layout of Llama's weights: `consolidated.NN.pth`, one for each model-parallel part, and `params.json`.

See https://github.com/meta-llama/llama-models, models/llama3/model.py, and https://github.com/meta-llama/llama.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shared.lm.config import ModelConfig
from shared.lm.errors import ModelConfigError, ModelFolderError
from shared.lm.json_file import read_json
from shared.lm.rope_config import Llama3Scaling, RopeConfig
from shared.system.errors import short_repr
from trainer.errors import TrainerError
from trainer.importing.foreign import ForeignModel, drop_tied_output, in_halves, is_tied
from trainer.importing.names import Names, hf_name, some
from trainer.importing.reference import Reference, llama3_frequencies, plain_frequencies
from trainer.importing.state_file import read_state

PARAMS = "params.json"
NAMES = Names(
    whole={"tok_embeddings.weight": "embedding", "norm.weight": "norm", "output.weight": "output"},
    layer="layers.{}.",
    parts={
        "attention.wq.weight": "query",
        "attention.wk.weight": "key",
        "attention.wv.weight": "value",
        "attention.wo.weight": "attention_output",
        "attention_norm.weight": "attention_norm",
        "ffn_norm.weight": "feed_forward_norm",
        "feed_forward.w1.weight": "gate",
        "feed_forward.w2.weight": "down",
        "feed_forward.w3.weight": "up",
    },
)
_SPLIT_BY_COLUMNS = ("attention_output", "down")  # of the layers; norms are in every part, the others split by rows
_NORMS = ("norm", "attention_norm", "feed_forward_norm")
_OLDER_THETA = 10_000.0  # Llama 2's, whose params.json has none
_SCALING = (8.0, 1.0, 4.0, 8_192)  # of `use_scaled_rope`: constants in Meta's code
# Of params.json; what follows from the shapes of the weights is not read.
_KNOWN = {
    "dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "multiple_of", "ffn_dim_multiplier", "norm_eps",
    "rope_theta", "use_scaled_rope", "max_batch_size", "max_seq_len",
}  # fmt: skip
_WITHOUT_EFFECT = (None, False, -1)


def read_meta(folder: Path, context_length: int) -> ForeignModel:
    """Read a folder.

    Args:
        folder: Holds `params.json` and `consolidated.*.pth`.
        context_length: The most tokens that the model was trained on at once, which Meta's files do not say.

    Raises:
        TrainerError: A file is missing or damaged, the parts contradict each other, or the model has more than Llama.
    """
    params = _read_params(folder / PARAMS)
    tensors = _joined(folder, _parts(folder))
    if unknown := [name for name in tensors if NAMES.part_of(name) is None]:
        raise TrainerError(f"{folder}: the weights hold {some(unknown)}, which Meta's Llama does not have")
    config = _config(folder, params, tensors, context_length)
    heads = {"query": config.num_heads, "key": config.num_kv_heads}
    weights = {}
    for name, tensor in tensors.items():
        place = NAMES.part_of(name)
        assert place is not None
        weights[hf_name(*place)] = in_halves(tensor, heads[place[0]]) if place[0] in heads else tensor
    frequencies = plain_frequencies(config.rope.theta, config.head_dim)
    notes = []
    if config.rope.scaling is not None:
        frequencies = llama3_frequencies(frequencies, *_SCALING)
        notes.append(
            "use_scaled_rope means a factor of 8, as in Meta's code; Hugging Face's copies of Llama 3.2 have 32: edit "
            "rope_scaling in config.json to match them"
        )
    return ForeignModel(
        format="Meta's Llama",
        config=config,
        weights=drop_tied_output(weights, config),
        theirs=NAMES.own_name,
        logits=Reference(
            weights=NAMES.collect(tensors),
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            norm_eps=config.norm_eps,
            frequencies=frequencies,
            neighbors=True,
        ).logits,
        notes=notes,
    )


def _read_params(file: Path) -> dict[str, Any]:
    try:
        params = read_json(file)
    except ModelFolderError as error:
        raise TrainerError(str(error)) from error
    for name, value in params.items():
        if name not in _KNOWN and value not in _WITHOUT_EFFECT:
            raise TrainerError(
                f'{file}: "{name}" is {short_repr(value)}, which Llama as it runs here does not have (quantized, LoRA, '
                "vision and mixture-of-experts models are not imported)"
            )
    for name in ("dim", "n_heads"):
        if type(params.get(name)) is not int or params[name] < 1:
            raise TrainerError(f'{file}: "{name}" must be a whole number above 0, got {short_repr(params.get(name))}')
    return params


def _parts(folder: Path) -> list[dict[str, Tensor]]:
    files = sorted(folder.glob("consolidated.*.pth"))
    numbers = [match[1] if (match := re.fullmatch(r"consolidated\.(\d\d)\.pth", file.name)) else "" for file in files]
    if numbers != [f"{number:02d}" for number in range(len(files))] or not files:
        found = ", ".join(file.name for file in files[:4]) or "none"
        raise TrainerError(
            f"{folder}: needs consolidated.00.pth and the parts that follow it, without gaps; found {found}"
        )
    parts = []
    for file in files:
        state = read_state(file, strip_wrappers=False)
        parts.append({name: tensor for name, tensor in state.items() if name != "rope.freqs"})  # from the settings
        if parts[-1].keys() != parts[0].keys():
            raise TrainerError(f"{file}: holds other names than consolidated.00.pth")
    return parts


def _joined(folder: Path, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The whole tensors: norms as they are, others joined along the side that they were split on."""
    if len(parts) == 1:
        return dict(parts[0])
    width = parts[0]["norm.weight"].shape[-1] if "norm.weight" in parts[0] else 0
    joined = {}
    for name in parts[0]:
        tensors = [part[name] for part in parts]
        place = NAMES.part_of(name)
        part = place[0] if place else ""
        if part in _NORMS:
            if not all(torch.equal(tensors[0], other) for other in tensors):
                raise TrainerError(f"{folder}: {name} differs between the parts, which must have the same")
            joined[name] = tensors[0]
            continue
        # Llama 2 splits the embedding's columns, Llama 3 its rows.
        by_columns = part in _SPLIT_BY_COLUMNS or (part == "embedding" and tensors[0].shape[-1] != width)
        try:
            joined[name] = torch.cat(tensors, dim=1 if by_columns else 0)
        except (RuntimeError, IndexError) as error:
            raise TrainerError(f"{folder}: the parts of {name} do not fit together ({error})") from error
    return joined


def _config(folder: Path, params: Mapping[str, Any], tensors: Mapping[str, Tensor], context_length: int) -> ModelConfig:
    needed = ("tok_embeddings.weight", "layers.0.feed_forward.w1.weight", "layers.0.attention.wq.weight")
    if missing := [name for name in needed if name not in tensors or tensors[name].ndim != 2]:
        raise TrainerError(f"{folder}: the weights lack {some(missing)}")
    embedding, dim, num_heads = tensors[needed[0]], params["dim"], params["n_heads"]
    if (rows := len(tensors[needed[2]])) < dim:
        raise TrainerError(f"{folder}: parts are missing: those there have {rows} of {dim} rows of {needed[2]}")
    if (vocab := params.get("vocab_size", -1)) not in (-1, len(embedding)):
        raise TrainerError(
            f'{folder / PARAMS}: "vocab_size" is {short_repr(vocab)}, but the embedding has {len(embedding)} rows'
        )
    theta = params.get("rope_theta")
    scaling = Llama3Scaling(*_SCALING) if params.get("use_scaled_rope") else None
    try:
        return ModelConfig(
            vocab_size=len(embedding),
            context_length=context_length,
            d_model=dim,
            num_layers=params.get("n_layers", NAMES.num_layers(tensors)),
            num_heads=num_heads,
            num_kv_heads=params.get("n_kv_heads") or num_heads,
            head_dim=dim // num_heads,
            d_ff=len(tensors[needed[1]]),
            norm_eps=params.get("norm_eps", 1e-5),
            tie_embeddings=is_tied(embedding, tensors.get("output.weight")),
            rope=RopeConfig(_OLDER_THETA if theta is None else theta, scaling),
        )
    except (ModelConfigError, TypeError) as error:
        raise TrainerError(f"{folder / PARAMS}: {error}") from error
