"""A byte-level byte-pair tokenizer in pure Python, as many services run one: it holds the GIL while it works."""

from __future__ import annotations

import itertools
from collections import Counter

_CORPUS = (
    "The quick brown fox jumps over the lazy dog while the service answers the request. "
    "A request is read, parsed and queued; the prompt is tokenized, the model attends to every token of it, "
    "and each step of the decode loop adds one more token to the answer until the answer is long enough. "
    "When the server is slow, the time is somewhere: in the queue, in the tokenizer, in the attention, "
    "in a lock that another thread holds, or on a disk that has not answered yet. "
)


class Tokenizer:
    """Byte-pair encoding learned from a fixed text. Ids 0..255 are bytes, the others merges of two ids."""

    def __init__(self, merges: int = 256) -> None:
        self.pieces: list[bytes] = [bytes([value]) for value in range(256)]
        self._ranks: dict[tuple[int, int], int] = {}
        ids = list(_CORPUS.encode())
        for _ in range(merges):
            pair, count = Counter(itertools.pairwise(ids)).most_common(1)[0]
            if count < 2:
                break
            self._ranks[pair] = len(self.pieces)
            self.pieces.append(self.pieces[pair[0]] + self.pieces[pair[1]])
            ids = _merge(ids, pair, self._ranks[pair])

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Applies the earliest learned merge first, until none applies."""
        ids = list(text.encode(errors="replace"))
        while len(ids) > 1:
            known = [(rank, pair) for pair in itertools.pairwise(ids) if (rank := self._ranks.get(pair)) is not None]
            if not known:
                break
            rank, pair = min(known)
            ids = _merge(ids, pair, rank)
        return ids

    def decode(self, ids: list[int]) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD. An id beyond the vocabulary is skipped."""
        return b"".join(self.pieces[i] for i in ids if i < len(self.pieces)).decode(errors="replace")


def _merge(ids: list[int], pair: tuple[int, int], merged: int) -> list[int]:
    out: list[int] = []
    position = 0
    while position < len(ids):
        if position + 1 < len(ids) and (ids[position], ids[position + 1]) == pair:
            out.append(merged)
            position += 2
        else:
            out.append(ids[position])
            position += 1
    return out
