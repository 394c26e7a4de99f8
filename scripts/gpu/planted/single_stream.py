"""Eight independent chains of small kernels, one after the other on one stream: most of the GPU's SMs stay unused.

The kernels run long for their size (a few blocks each), so the host is no bottleneck.
Expected: single-stream.
"""

import sys
import time

import torch

CHAINS = 8


def main(seconds: float) -> None:
    inputs = [torch.rand(2, 4_000_000, device="cuda") for _ in range(CHAINS)]
    outputs = [torch.empty_like(values) for values in inputs]
    end = time.monotonic() + seconds
    steps = 0
    while time.monotonic() < end:
        for values, out in zip(inputs, outputs, strict=True):  # independent of each other, serial all the same
            torch.cumsum(values, dim=1, out=out)
        steps += 1
        if steps % 8 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    print(f"RESULT steps={steps}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
