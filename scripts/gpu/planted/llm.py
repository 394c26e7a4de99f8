"""Decoding with a small random-weight transformer in plain torch, batch 1: host-bound, as unfused decoding is.

Expected: launch-bound, naming a line of the model. One read a token (sync-in-loop) is not the cause.
"""

import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional

HIDDEN, HEADS, LAYERS, VOCABULARY = 1024, 16, 16, 32_000


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up, self.gate = (nn.Linear(HIDDEN, 4 * HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cache)
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    def attention(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        cache[0], cache[1] = torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)
        scores = (q @ cache[0].transpose(2, 3)) / math.sqrt(HIDDEN // HEADS)
        mixed = torch.softmax(scores.float(), dim=-1).to(x.dtype) @ cache[1]
        return self.out(mixed.transpose(1, 2).reshape(batch, length, HIDDEN))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, caches: list[list[torch.Tensor]]) -> torch.Tensor:
        x = self.embed(tokens)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache)
        return self.head(self.norm(x))[:, -1]


@torch.inference_mode()
def decode_step(model: Model, token: torch.Tensor, caches: list[list[torch.Tensor]]) -> torch.Tensor:
    return model(token, caches).argmax(-1, keepdim=True)


def main(seconds: float) -> None:
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Model().to(torch.bfloat16).eval()
    end = time.monotonic() + seconds
    tokens = 0
    while time.monotonic() < end:
        empty = torch.empty(1, HEADS, 0, HIDDEN // HEADS, device="cuda", dtype=torch.bfloat16)
        caches = [[empty, empty] for _ in range(LAYERS)]
        token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
        for _ in range(256):
            token = decode_step(model, token, caches)
            token.item()
            tokens += 1
            if time.monotonic() >= end:
                break
    print(f"RESULT tokens={tokens}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
