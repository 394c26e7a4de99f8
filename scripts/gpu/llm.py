"""A small Llama with random weights decodes at batch 1, in plain transformers: the program of docs/gpu.md.

    python3 scripts/gpu/llm.py [TOKENS]

Needs torch and transformers. Prints tokens a second and the milliseconds of a token, median and 99th percentile.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

PROMPT_TOKENS, WARM_UP_TOKENS = 128, 20


def load() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        return LlamaForCausalLM(config).to(torch.bfloat16).eval()


@torch.inference_mode()
def step(model: LlamaForCausalLM, tokens: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
    """The most probable next token, and the cache with these tokens in it."""
    output = model(tokens, past_key_values=cache, use_cache=True)
    return output.logits[:, -1].argmax(-1, keepdim=True), output.past_key_values


def generate(model: LlamaForCausalLM, prompt: torch.Tensor, count: int) -> list[float]:
    """Milliseconds of each of `count` tokens after the prompt."""
    token, cache = step(model, prompt, None)
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        token, cache = step(model, token, cache)
        token.item()
        taken.append((time.perf_counter() - began) * 1e3)
    return taken


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    model = load()
    prompt = torch.randint(0, 32_000, (1, PROMPT_TOKENS), device="cuda")
    generate(model, prompt, WARM_UP_TOKENS)
    taken = sorted(generate(model, prompt, count))
    result = {
        "tok_s": round(1e3 / statistics.mean(taken), 1),
        "p50": round(statistics.median(taken), 3),
        "p99": round(taken[int(len(taken) * 0.99)], 3),
    }
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
