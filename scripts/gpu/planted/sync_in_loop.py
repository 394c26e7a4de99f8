"""A loss is read on every step, so the GPU drains and stands idle while the host prepares the next step.

Expected: sync-in-loop at train_step's .item(), and nothing else: the kernels of a step take some 4 ms, what the host
does between two steps 1 ms, so without the reads the GPU would stay busy.
"""

import sys
import time

import torch


def prepare(step: int, turns: int) -> float:
    total = 0.0
    for i in range(turns):  # host work that would overlap with the GPU if nobody waited for it
        total += (step + i) % 7
    return total


@torch.inference_mode()
def train_step(weights: torch.Tensor, batch: torch.Tensor) -> float:
    for _ in range(8):
        batch = torch.relu(batch @ weights)
    return batch.float().mean().item()  # the synchronisation


def main(seconds: float, rows: int = 32_768, turns: int = 8_000) -> None:
    weights = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) * 0.02
    batch = torch.randn(rows, 2048, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + seconds
    steps = 0
    history = []
    while time.monotonic() < end:
        prepare(steps, turns)
        history.append(train_step(weights, batch))
        steps += 1
    print(f"RESULT steps={steps} last={history[-1]:.3g}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
