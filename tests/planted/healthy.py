"""Control: a service about half busy. Stages of like cost hand each request on through queues, one at a time."""

import queue
import threading
import time


def parse(rounds=9_000):
    found = 0
    for step in range(rounds):
        found ^= step << (step & 7)
    return found


def tokenize(rounds=9_000):
    text = 0
    for step in range(rounds):
        text = (text * 33 + step) & 0xFFFF
    return text


def decode(rounds=6_000):
    best = 0
    for step in range(rounds):
        best = max(best, step % 97)
    return best


def stage(function, source, sink):
    while source.get() is not None:
        function()
        sink.put(1)
    sink.put(None)


first, second, third, done = (queue.Queue() for _ in range(4))
stages = ((parse, first, second), (tokenize, second, third), (decode, third, done))
threads = [threading.Thread(target=stage, args=s, name=s[0].__name__) for s in stages]
for thread in threads:
    thread.start()
end = time.monotonic() + 2.5
while time.monotonic() < end:
    first.put(1)
    done.get()
    time.sleep(0.002)
first.put(None)
for thread in threads:
    thread.join()
