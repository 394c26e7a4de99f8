"""Planted: four threads run pure Python at once; detokenize takes the largest part of it, but not half."""

import threading
import time


def detokenize(rounds):
    text = 0
    for step in range(rounds):  # planted: gil-contention
        text = (text * 33 + step) & 0xFFFF
    return text


def tokenize(rounds):
    found = 0
    for step in range(rounds):
        found ^= step << (step & 7)
    return found


def route(rounds):
    best = 0
    for step in range(rounds):
        best = max(best, step % 97)
    return best


def work(end):
    while time.monotonic() < end:
        detokenize(24_000)
        tokenize(13_000)
        route(6_000)


end = time.monotonic() + 2.5
threads = [threading.Thread(target=work, args=(end,), name=f"worker-{n}") for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
