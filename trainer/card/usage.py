"""How to run the model: the part of its card that is the same for all."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from shared.lm.config import ModelConfig
from trainer.card.markdown import block

_PROMPT = "Once upon a time"
_QUESTION = "Who are you?"
_TRANSFORMERS = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
{inputs}
output = model.generate(**inputs, max_new_tokens=32)
print(tokenizer.decode(output[0]))"""
_TEXT = 'inputs = tokenizer({prompt}, return_tensors="pt")'
_CHAT = """messages = [{{"role": "user", "content": {prompt}}}]
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
)"""


def usage_lines(config: ModelConfig, record: Mapping[str, Any], *, chat: bool) -> Iterator[str]:
    """The section on running the model; a research model runs in ownlm only."""
    prompt = _QUESTION if chat else record.get("sample_prompt")
    if not isinstance(prompt, str) or not prompt.isprintable():
        prompt = _PROMPT
    shell = shlex.quote(prompt)
    yield from ("## Run it", "", "`FOLDER` stands for this folder.", "")
    if config.research_features:
        yield from ("Only ownlm's trainer runs a research model:", "")
        yield from block("sh", f"python -m trainer generate FOLDER {shell}")
        return
    yield from ("In transformers:", "")
    yield from block("python", _TRANSFORMERS.format(inputs=(_CHAT if chat else _TEXT).format(prompt=repr(prompt))))
    route = "/v1/chat/completions" if chat else "/v1/completions"
    yield from ("In vLLM:", "", *block("sh", "vllm serve FOLDER --served-model-name model"))
    yield from ("In llama.cpp, Ollama and LM Studio, after an export by ownlm:", "")
    yield from block(
        "sh", f"python -m trainer export FOLDER --gguf model.gguf --dtype q8_0\nllama-cli -m model.gguf -p {shell}"
    )
    yield from (f"In ownlm, on a command line and as a service with `{route}`:", "")
    yield from block(
        "sh",
        f"python -m trainer generate FOLDER {shell}\nOWNLM_MODEL_DIR=FOLDER python -m services.inference",
    )
