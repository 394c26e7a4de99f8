"""A healthy loop: pinned copies on a stream of their own beside large kernels, results read one step late.

Expected: no finding from the timeline.
"""

import sys
import time

import torch

MB = 16


@torch.inference_mode()
def compute(batch: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    hidden = batch.view(-1, 4096)
    for _ in range(6):
        hidden = torch.relu(hidden @ weights)
    return hidden


def main(seconds: float) -> None:
    host = [torch.randn(MB << 19).to(torch.bfloat16).pin_memory() for _ in range(2)]
    device = [torch.empty(MB << 19, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    weights = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) * 0.01
    copies, compute_stream = torch.cuda.Stream(), torch.cuda.current_stream()
    copied = [torch.cuda.Event() for _ in range(2)]
    used = [torch.cuda.Event() for _ in range(2)]
    end = time.monotonic() + seconds
    steps = 0
    while time.monotonic() < end:
        slot = steps % 2
        with torch.cuda.stream(copies):
            copies.wait_event(used[slot])
            device[slot].copy_(host[slot], non_blocking=True)
            copied[slot].record(copies)
        compute_stream.wait_event(copied[slot])
        compute(device[slot], weights)
        used[slot].record(compute_stream)
        if steps:
            used[1 - slot].synchronize()  # the step before: the queue keeps a step of work
        steps += 1
    torch.cuda.synchronize()
    print(f"RESULT steps={steps}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
