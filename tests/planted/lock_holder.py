"""Planted: a background thread holds a lock while it reloads; the only request thread waits for it."""

import threading
import time

TABLE = threading.Lock()


def reload():
    with TABLE:
        time.sleep(0.05)


def request():
    with TABLE:  # planted: lock-contention
        time.sleep(0.004)


def refresh(end):
    while time.monotonic() < end:
        reload()
        time.sleep(0.01)


end = time.monotonic() + 2.5
background = threading.Thread(target=refresh, args=(end,), name="refresher")
background.start()
while time.monotonic() < end:
    request()
    time.sleep(0.002)
background.join()
