"""Batches go to the GPU from pageable memory: the copies are staged, slow, and hold up the host.

Expected: pageable-copy at load. copy-not-overlapped may hold too: such copies can't run beside kernels.
"""

import sys
import time

import torch

MB = 64


def load(batch: torch.Tensor) -> torch.Tensor:
    return batch.to("cuda", non_blocking=True)  # non_blocking changes nothing for pageable memory


def main(seconds: float) -> None:
    host = [torch.randn(MB << 18) for _ in range(4)]
    end = time.monotonic() + seconds
    steps = 0
    while time.monotonic() < end:
        batch = load(host[steps % len(host)])
        batch.mul_(1.5).add_(1.0)
        steps += 1
    torch.cuda.synchronize()
    print(f"RESULT steps={steps} pinned={host[0].is_pinned()}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
