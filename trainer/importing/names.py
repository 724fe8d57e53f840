"""The names that a format gives to weights, and ours and Hugging Face's."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from trainer.importing.reference import Weights

# The parts as `reference.Reference` calls them, under Hugging Face's names.
_WHOLE = {"embedding": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
_PARTS = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_output": "self_attn.o_proj",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
    "feed_forward_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


@dataclass(frozen=True)
class Names:
    """A format's names.

    Attributes:
        whole: Those outside of layers, with the part that each is.
        layer: What names in layers begin with, "{}" for the number.
        parts: The rest of those names, with the part that each is.
    """

    whole: Mapping[str, str]
    layer: str
    parts: Mapping[str, str]

    def part_of(self, name: str) -> tuple[str, int | None] | None:
        """The part that a name stands for, and its layer; None for other names."""
        if name in self.whole:
            return self.whole[name], None
        match = re.fullmatch(re.escape(self.layer).replace(r"\{\}", r"(0|[1-9]\d{0,3})") + "(.+)", name)
        part = self.parts.get(match[2]) if match else None
        return (part, int(match[1])) if match and part else None

    def hf_name(self, name: str) -> str:
        """Hugging Face's name of one of the format's."""
        found = self.part_of(name)
        assert found is not None
        return hf_name(*found)

    def own_name(self, hf: str) -> str:
        """The format's name of one of Hugging Face's; that itself where the format has none."""
        for name, part in self.whole.items():
            if hf_name(part) == hf:
                return name
        match = re.fullmatch(r"model\.layers\.(\d+)\..+", hf)
        for rest, part in self.parts.items():
            if match and hf_name(part, int(match[1])) == hf:
                return self.layer.format(match[1]) + rest
        return hf

    def num_layers(self, names: Iterable[str]) -> int:
        """One more than the highest number of a layer."""
        found = [place[1] for name in names if (place := self.part_of(name)) and place[1] is not None]
        return 1 + max(found, default=-1)

    def collect(self, tensors: Mapping[str, Tensor]) -> Weights:
        """Access to tensors by part and layer."""
        found = {place: tensor for name, tensor in tensors.items() if (place := self.part_of(name))}
        return lambda part, layer=None: found.get((part, layer))


def hf_name(part: str, layer: int | None = None) -> str:
    """Hugging Face's name of a part; of a bias, if the part ends in `_bias`."""
    stem, kind = (part.removesuffix("_bias"), "bias") if part.endswith("_bias") else (part, "weight")
    return f"{_WHOLE[stem]}.{kind}" if layer is None else f"model.layers.{layer}.{_PARTS[stem]}.{kind}"


def some(names: Iterable[str]) -> str:
    """Up to four names, and how many more."""
    ordered = sorted(names)
    more = f" and {len(ordered) - 4} more" if len(ordered) > 4 else ""
    return ", ".join(ordered[:4]) + more
