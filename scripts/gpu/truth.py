"""Launches known kernels from known functions, in known numbers: python scripts/gpu/truth.py [fork|exit|term|segv]

rectify() 200 times relu, twice, the second time inside the NVTX range "phase-A"; squash() 100 times sigmoid on a thread
of its own; nested() 60 times tanh from an inner function; graph() 50 replays of a CUDA graph of three kernels; copies()
ten pageable and ten pinned copies to the device; backward() five times through autograd's threads, which run no Python.

tests/data/gpu/truth.spool.gz is what the CUDA probe recorded of it:
    perfscope record -o truth.perfscope -- python scripts/gpu/truth.py
    gzip -9nc truth.perfscope/raw/cuda/*.spool > tests/data/gpu/truth.spool.gz
"""

import ctypes
import os
import signal
import sys
import threading
import time

import torch

x = torch.randn(1024, 1024, device="cuda")


def rectify() -> torch.Tensor:
    y = x
    for _ in range(200):
        y = torch.relu(y)
    return y


def squash() -> None:
    for _ in range(100):
        torch.sigmoid(x)


def nested() -> None:
    def inner() -> torch.Tensor:
        return torch.tanh(x)

    for _ in range(60):
        inner()


def graph() -> None:
    captured, warm = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        torch.cos(torch.exp(x))
    torch.cuda.current_stream().wait_stream(warm)
    with torch.cuda.graph(captured):
        torch.sin(torch.cos(torch.exp(x)))
    for _ in range(50):
        captured.replay()


def copies() -> None:
    pageable, pinned = torch.empty(1 << 20), torch.empty(1 << 20, pin_memory=True)
    for _ in range(10):
        pageable.cuda()
    for _ in range(10):
        pinned.cuda(non_blocking=True)


def backward() -> None:
    weight = torch.randn(512, 512, device="cuda", requires_grad=True)
    for _ in range(5):
        (weight @ weight).sum().backward()


def main(mode: str) -> None:
    rectify()
    thread = threading.Thread(target=squash)
    thread.start()
    thread.join()
    nested()
    graph()
    copies()
    backward()
    torch.cuda.nvtx.range_push("phase-A")
    rectify()
    torch.cuda.nvtx.range_pop()
    torch.cuda.synchronize()
    if mode == "fork":
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        rectify()
        torch.cuda.synchronize()
    time.sleep(0.5)
    if mode == "exit":
        os._exit(3)
    if mode == "term":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    if mode == "segv":
        ctypes.string_at(0)


main(sys.argv[1] if len(sys.argv) > 1 else "")
