"""Planted: four threads answer requests, and a cache's lock is held while its value is fetched from elsewhere."""

import threading
import time

CACHE = threading.Lock()


def fetch():
    time.sleep(0.02)


def lookup():
    with CACHE:  # planted: lock-contention
        fetch()


def work(end):
    while time.monotonic() < end:
        lookup()
        time.sleep(0.005)


end = time.monotonic() + 2.5
threads = [threading.Thread(target=work, args=(end,), name=f"request-{n}") for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
