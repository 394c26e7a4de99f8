"""Pinned, asynchronous copies, but on the stream of the kernels: each waits for the other.

Expected: copy-not-overlapped at load. Not pageable-copy: the memory is pinned.
"""

import sys
import time

import torch

MB = 64


def load(batch: torch.Tensor, into: torch.Tensor) -> None:
    into.copy_(batch, non_blocking=True)


@torch.inference_mode()
def compute(batch: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.relu(batch.view(-1, 4096) @ weights) @ weights


def main(seconds: float) -> None:
    host = [torch.randn(MB << 18).pin_memory() for _ in range(2)]
    device = [torch.empty(MB << 18, device="cuda") for _ in range(2)]
    weights = torch.randn(4096, 4096, device="cuda") * 0.01
    end = time.monotonic() + seconds
    steps = 0
    while time.monotonic() < end:
        for _ in range(16):
            load(host[steps % 2], device[steps % 2])
            compute(device[steps % 2], weights)
            steps += 1
        torch.cuda.synchronize()  # bounds how far the host runs ahead
    print(f"RESULT steps={steps}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
