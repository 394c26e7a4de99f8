"""Planted: each request appends to a journal and waits until the device has it. argv[1]: a file on a real disk."""

import mmap
import os
import sys
import time
from pathlib import Path

RECORD = mmap.mmap(-1, 4 << 20)  # aligned to pages, as O_DIRECT asks


def append(journal):
    os.pwrite(journal, RECORD, 0)  # planted: disk-wait


def parse(number):
    for step in range(15_000):
        number ^= step
    return number


def price(number):
    for step in range(15_000):
        number += step
    return number


def render(number):
    for step in range(15_000):
        number |= step
    return number


journal = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_DIRECT | os.O_DSYNC, 0o600)
end = time.monotonic() + 2.5
number = 0
while time.monotonic() < end:
    render(price(parse(number)))
    append(journal)
    number += 1
os.close(journal)
Path(sys.argv[1]).unlink()
