"""Continuous batching: worker threads take requests off one queue and decode those they hold together."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .model import KVCache, Transformer
from .tokenizer import Tokenizer


class Overloaded(Exception):
    """The queue is full: the request was not taken."""


@dataclass(frozen=True)
class Answer:
    """What a request comes back with. Times in ms; queued_ms: from submission until a worker took it."""

    text: str
    prompt_tokens: int
    new_tokens: int
    queued_ms: float
    total_ms: float


@dataclass
class _Sequence:
    prompt: list[int]
    wanted: int
    future: Future[Answer]
    submitted: float = field(default_factory=time.monotonic)
    started: float = 0.0
    tokens: list[int] = field(default_factory=list)


class Engine:
    """Serves requests with `workers` threads of up to `batch` sequences each; refuses beyond `queue_size` waiting."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, workers: int, batch: int, queue_size: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._batch = batch
        self._queue: queue.Queue[_Sequence | None] = queue.Queue(queue_size)
        self._threads = [
            threading.Thread(target=self._work, name=f"worker-{number}", daemon=True) for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, prompt: str, new_tokens: int) -> Future[Answer]:
        """Queues a request. Of too long a prompt the end is kept. Raises Overloaded if the queue is full."""
        tokens = self._tokenizer.encode(prompt) or [0]
        room = self._model.config.context - new_tokens
        sequence = _Sequence(tokens[-room:], new_tokens, Future())
        try:
            self._queue.put_nowait(sequence)
        except queue.Full:
            raise Overloaded from None
        return sequence.future

    def close(self) -> None:
        """Answers what is queued, then ends the workers."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        active: list[tuple[_Sequence, KVCache]] = []
        closing = False
        while active or not closing:
            while not closing and len(active) < self._batch:
                try:
                    sequence = self._queue.get(block=not active)
                except queue.Empty:
                    break
                if sequence is None:
                    closing = True
                    break
                active.append((sequence, self._prefill(sequence)))
            active = [(sequence, cache) for sequence, cache in active if not self._finish(sequence)]
            if active:
                sequences = [sequence for sequence, _ in active]
                logits = self._model.decode([s.tokens[-1] for s in sequences], [cache for _, cache in active])
                for sequence, row in zip(sequences, logits, strict=True):
                    sequence.tokens.append(sample(row, sequence.tokens))

    def _prefill(self, sequence: _Sequence) -> KVCache:
        sequence.started = time.monotonic()
        cache = KVCache(self._model.config)
        logits = self._model.prefill(sequence.prompt, cache)
        sequence.tokens.append(sample(logits, sequence.prompt))
        return cache

    def _finish(self, sequence: _Sequence) -> bool:
        if len(sequence.tokens) < sequence.wanted:
            return False
        sequence.future.set_result(
            Answer(
                text=self._tokenizer.decode(sequence.tokens),
                prompt_tokens=len(sequence.prompt),
                new_tokens=len(sequence.tokens),
                queued_ms=(sequence.started - sequence.submitted) * 1e3,
                total_ms=(time.monotonic() - sequence.submitted) * 1e3,
            )
        )
        return True


def sample(logits: npt.NDArray[np.float32], history: list[int]) -> int:
    """The likeliest token that isn't one of the last eight: greedy, so the same prompt gives the same answer."""
    logits = logits.copy()
    logits[history[-8:]] = -np.inf
    return int(np.argmax(logits))
