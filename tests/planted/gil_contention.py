"""Planted: four threads run pure Python at once; detokenize holds the GIL nearly three times as long as any other.

It is less than half of all: more would be a fault of its own, a hotspot. How long each function takes is measured
first, so that the shares are the same on every machine: 42 % and four times 14.5 %.
"""

import threading
import time

ROUNDS = 5_000


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


def rank(rounds):
    order = 0
    for step in range(rounds):
        order += step * step % 89
    return order


def pack(rounds):
    word = 1
    for step in range(rounds):
        word = (word << 1 | step & 1) & 0xFFFFFFFF
    return word


def timed(function):
    start = time.perf_counter()
    function(ROUNDS)
    return time.perf_counter() - start


def work(end):
    while time.monotonic() < end:
        for function, rounds in calls:
            function(rounds)


shares = {detokenize: 0.42, tokenize: 0.145, route: 0.145, rank: 0.145, pack: 0.145}
tries = [[timed(function) for function in shares] for _ in range(30)]  # the quickest is what it takes undisturbed
calls = [
    (function, round(ROUNDS * 0.003 * share / min(seconds)))
    for (function, share), seconds in zip(shares.items(), zip(*tries, strict=True), strict=True)
]
end = time.monotonic() + 4
threads = [threading.Thread(target=work, args=(end,), name=f"worker-{n}") for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
