"""Planted: nothing to do. Workers wait at a queue, and now and then one gets a small request."""

import queue
import threading
import time

requests = queue.Queue()


def work():
    while (number := requests.get()) is not None:
        sum(range(number))


threads = [threading.Thread(target=work, name=f"worker-{n}") for n in range(4)]
for thread in threads:
    thread.start()
end = time.monotonic() + 2.5
while time.monotonic() < end:
    requests.put(2000)
    time.sleep(0.05)
for _ in threads:
    requests.put(None)
for thread in threads:
    thread.join()
