"""Planted: each request appends to a journal and waits until the device has it. argv[1]: a file on a real disk."""

import os
import sys
import time
from pathlib import Path


def append(journal, record):
    os.pwrite(journal, record, 0)
    os.fsync(journal)  # planted: disk-wait


def handle(number):
    return sum(range(number % 500)).to_bytes(8, "big") * 8192


journal = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o600)
end = time.monotonic() + 2.5
number = 0
while time.monotonic() < end:
    append(journal, handle(number))
    number += 1
os.close(journal)
Path(sys.argv[1]).unlink()
