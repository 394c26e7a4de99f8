"""Results leave the GPU without a pause, into pinned memory, while a thread writes to the disk with fsync.

Expected: pcie-saturated on the way from the GPU, with the block writes beside it where they are slow; no pageable-copy.
"""

import os
import sys
import tempfile
import threading
import time

import torch

MB = 256


def write(until: float) -> None:
    """Keeps the disk busy with writes that reach it."""
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=".") as file:
        while time.monotonic() < until:
            file.seek(0)
            for _ in range(8):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())


def main(seconds: float) -> None:
    device = torch.ones(MB << 20, device="cuda", dtype=torch.uint8)
    host = [torch.empty(MB << 20, dtype=torch.uint8).pin_memory() for _ in range(2)]
    done = [torch.cuda.Event() for _ in range(2)]
    end = time.monotonic() + seconds
    writer = threading.Thread(target=write, args=(end,), name="writer")
    writer.start()
    steps = 0
    while time.monotonic() < end:
        for _ in range(4):
            host[steps % 2].copy_(device, non_blocking=True)
        done[steps % 2].record()
        if steps:
            done[(steps - 1) % 2].synchronize()  # the batch before: the link always has work
        steps += 1
    torch.cuda.synchronize()
    writer.join()
    print(f"RESULT steps={steps} gb_s={steps * 4 * MB / 1024 / seconds:.1f}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
