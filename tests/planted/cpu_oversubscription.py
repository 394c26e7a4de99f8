"""Planted: four busy threads a CPU, all outside the GIL nearly all of the time, in three functions alike."""

import hashlib
import os
import threading
import time
import zlib

BLOCK = os.urandom(1 << 20) * 8


def digest(parts):
    return hashlib.sha1(BLOCK * parts).digest()


def checksum(parts):
    return hashlib.blake2b(BLOCK * parts).digest()


def pack(parts):
    return len(zlib.compress(BLOCK[: 1 << 19] * parts, 1))


def work(end):
    while time.monotonic() < end:
        digest(4)
        checksum(4)
        pack(2)


end = time.monotonic() + 2.5
count = 4 * (os.cpu_count() or 1)
threads = [threading.Thread(target=work, args=(end,), name=f"pool-{n}") for n in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
