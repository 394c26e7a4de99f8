"""Host-bound decoding: hundreds of tiny kernels a step, with Python work between them. The GPU mostly stands idle.

Expected: launch-bound, naming plan_next_token's loop. Nothing else from the timeline.
"""

import sys
import time

import torch

LAYERS = 24


def plan_next_token(step: int) -> int:
    total = 0
    for i in range(1000):  # the line that holds the time
        total += (step * 31 + i * i) % 97
    return total


@torch.inference_mode()
def decode_step(hidden: torch.Tensor, weights: list[torch.Tensor], step: int) -> torch.Tensor:
    for weight in weights:
        plan_next_token(step)
        hidden = torch.tanh(hidden @ weight) + hidden
    return hidden


def main(seconds: float) -> None:
    weights = [torch.randn(256, 256, device="cuda") * 0.01 for _ in range(LAYERS)]
    hidden = torch.randn(1, 256, device="cuda")
    end = time.monotonic() + seconds
    steps = 0
    while time.monotonic() < end:
        hidden = decode_step(hidden, weights, steps)
        steps += 1
        if steps % 64 == 0:
            hidden = torch.randn(1, 256, device="cuda")
    torch.cuda.synchronize()
    print(f"RESULT steps={steps}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
