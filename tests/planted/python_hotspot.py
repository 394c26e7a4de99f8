"""Planted: one function holds most of the CPU time of a single thread."""

import time


def score(tokens):
    total = 0
    for step in range(60_000):  # planted: python-hotspot
        total += (step * 31) ^ tokens[step % len(tokens)]
    return total


def tokenize(text):
    return [sum(map(ord, word)) for word in text.split()]


def render(tokens):
    return " ".join(f"{token:x}" for token in tokens)


def main():
    end = time.monotonic() + 2.5
    text = "the quick brown fox jumps over the lazy dog " * 40
    while time.monotonic() < end:
        tokens = tokenize(text)
        score(tokens)
        render(tokens)


main()
