"""Large matrix products without a pause: the GPU is busy all the time, at its power limit.

Expected: gpu-saturated from the device's counters; nothing from the timeline.
"""

import sys
import time

import torch


@torch.inference_mode()
def main(seconds: float) -> None:
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    done = [torch.cuda.Event() for _ in range(2)]
    end = time.monotonic() + seconds
    steps = 0
    while time.monotonic() < end:
        for _ in range(32):
            torch.matmul(a, b, out=out)
        done[steps % 2].record()
        if steps:
            done[(steps - 1) % 2].synchronize()  # waits for the batch before the last: the queue never drains
        steps += 1
    torch.cuda.synchronize()
    print(f"RESULT steps={steps}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
