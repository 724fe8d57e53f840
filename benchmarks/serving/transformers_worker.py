"""transformers' `generate` on whole batches, without HTTP: `python -m benchmarks.serving.transformers_worker FOLDER`.

Takes a line of JSON, a list of prompts of ids of one length; answers with the seconds that 128 tokens for each took.
"""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.serving.servers import NEW_TOKENS, TEMPERATURE, TOP_P


def main() -> None:
    """Answer until standard input ends."""
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    config = GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=True,
        temperature=TEMPERATURE,
        top_p=TOP_P,
        top_k=0,
        eos_token_id=model.generation_config.eos_token_id,
        pad_token_id=0,
    )
    print("ready", flush=True)
    for line in sys.stdin:
        prompts = torch.tensor(json.loads(line))
        started = time.perf_counter()
        with torch.inference_mode():
            output = model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config)
        seconds = time.perf_counter() - started
        assert output.shape[1] == prompts.shape[1] + NEW_TOKENS
        print(seconds, flush=True)


if __name__ == "__main__":
    main()
