"""What one version of transformers makes of model folders: run by its interpreter, which has nothing of ours.

`python transformers_peer.py REQUEST.json ANSWER.json`; REQUEST has `folders`, `texts` and `messages`.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

NEW_TOKENS = 8


def run(folder: str, texts: list[str]) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    batches = [tokenizer(text) for text in texts]
    first = tokenizer(texts[0], return_tensors="pt")
    with torch.no_grad():
        logits = model(first["input_ids"]).logits[0]
    output = model.generate(**first, max_new_tokens=NEW_TOKENS, do_sample=False)
    return {
        "ids": [list(batch["input_ids"]) for batch in batches],
        "decoded": [tokenizer.decode(batch["input_ids"]) for batch in batches],
        "logits": logits.tolist(),
        "greedy": output[0, first["input_ids"].shape[1] :].tolist(),
        "faults": sorted(str(name) for key in ("missing_keys", "unexpected_keys") for name in loading[key]),
        "eos": model.generation_config.eos_token_id,
    }


def converse(folder: str, messages: list[dict[str, str]]) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return {"text": text, "ids": list(ids["input_ids"] if hasattr(ids, "keys") else ids)}


def attempt(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return call()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    texts, messages, folders = request["texts"], request["messages"], request["folders"]
    answer = {
        "version": transformers.__version__,
        "folders": {folder: attempt(lambda folder=folder: run(folder, texts)) for folder in folders},
        "conversation": attempt(lambda: converse(folders[0], messages)),
    }
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
