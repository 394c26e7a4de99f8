"""Planted: four busy threads a CPU, all outside the GIL nearly all of the time, in three functions alike."""

import hashlib
import os
import threading
import time
import zlib

LARGE = os.urandom(1 << 20) * 32
HALF = LARGE[: 16 << 20]
SMALL = LARGE[: 1 << 20]


def digest():
    return hashlib.sha1(LARGE).digest()


def checksum():
    return hashlib.blake2b(HALF).digest()


def pack():
    return len(zlib.compress(SMALL, 1))


def work(end):
    while time.monotonic() < end:
        digest()
        checksum()
        pack()


end = time.monotonic() + 2.5
count = 4 * (os.cpu_count() or 1)
threads = [threading.Thread(target=work, args=(end,), name=f"pool-{n}") for n in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
