"""Planted: four busy threads a CPU, all outside the GIL nearly all of the time, in four functions alike.

How fast each function is gets measured first, so that each has a quarter of the time on every machine.
"""

import hashlib
import os
import threading
import time
import zlib

LARGE = memoryview(os.urandom(1 << 20) * 64)
MEASURED = LARGE[: 1 << 20]
CALL_S = 0.015


def digest(data):
    return hashlib.sha1(data).digest()


def sign(data):
    return hashlib.sha512(data).digest()


def checksum(data):
    return hashlib.blake2b(data).digest()


def pack(data):
    return len(zlib.compress(data, 1))


def timed(function):
    start = time.perf_counter()
    function(MEASURED)
    return time.perf_counter() - start


def work(end):
    while time.monotonic() < end:
        for function, data in calls:
            function(data)


functions = (digest, sign, checksum, pack)
tries = [[timed(function) for function in functions] for _ in range(10)]  # the quickest is what it takes undisturbed
calls = [
    (function, LARGE[: int(len(MEASURED) * CALL_S / min(seconds))])
    for function, seconds in zip(functions, zip(*tries, strict=True), strict=True)
]
end = time.monotonic() + 2.5
count = 4 * (os.cpu_count() or 1)
threads = [threading.Thread(target=work, args=(end,), name=f"pool-{n}") for n in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
