"""A decoder-only transformer in numpy: prefill of a prompt, then one decode step a token for a batch of sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Config:
    """Shape of the model. context: longest sequence, prompt and answer together, in tokens."""

    vocabulary: int = 512
    width: int = 256
    layers: int = 4
    heads: int = 4
    context: int = 512


class KVCache:
    """Keys and values of one sequence. keys, values: float32[layers, heads, context, width / heads]."""

    def __init__(self, config: Config) -> None:
        shape = (config.layers, config.heads, config.context, config.width // config.heads)
        self.keys = np.empty(shape, np.float32)
        self.values = np.empty(shape, np.float32)
        self.length = 0


@dataclass(frozen=True)
class _Layer:
    qkv: Array
    out: Array
    up: Array
    down: Array


class Transformer:
    """Random weights from a fixed seed. Safe to use from several threads: it keeps no state between calls."""

    def __init__(self, config: Config, seed: int = 0) -> None:
        self.config = config
        random = np.random.default_rng(seed)

        def weights(rows: int, columns: int) -> Array:
            return random.standard_normal((rows, columns), np.float32) / np.float32(rows**0.5)

        w = config.width
        self.embedding = weights(config.vocabulary, w)
        self.positions = weights(config.context, w)
        self.layers = [
            _Layer(weights(w, 3 * w), weights(w, w), weights(w, 4 * w), weights(4 * w, w)) for _ in range(config.layers)
        ]

    def prefill(self, tokens: list[int], cache: KVCache) -> Array:
        """Reads a whole prompt into an empty cache. Returns the logits after its last token, float32[vocabulary]."""
        count = len(tokens)
        hidden: Array = self.embedding[tokens] + self.positions[:count]
        causal: Array = np.triu(np.full((count, count), -np.inf, np.float32), 1)
        for index, layer in enumerate(self.layers):
            query, key, value = self._project(layer, hidden)
            cache.keys[index, :, :count] = key.transpose(1, 0, 2)
            cache.values[index, :, :count] = value.transpose(1, 0, 2)
            scores = query.transpose(1, 0, 2) @ key.transpose(1, 2, 0) * self._scale + causal
            mixed: Array = (softmax(scores) @ value.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(count, -1)
            hidden = feed_forward(layer, hidden + mixed @ layer.out)
        cache.length = count
        last: Array = self._logits(hidden[-1:])[0]
        return last

    def decode(self, tokens: list[int], caches: list[KVCache]) -> Array:
        """One step for a batch: each sequence's last token in, logits out, float32[batch, vocabulary]."""
        hidden = self.embedding[tokens] + self.positions[[cache.length for cache in caches]]
        for index, layer in enumerate(self.layers):
            query, key, value = self._project(layer, hidden)
            mixed = np.empty_like(query)
            for row, cache in enumerate(caches):
                mixed[row] = self._attend(index, cache, query[row], key[row], value[row])
            hidden = feed_forward(layer, hidden + mixed.reshape(len(tokens), -1) @ layer.out)
        for cache in caches:
            cache.length += 1
        return self._logits(hidden)

    def _attend(self, index: int, cache: KVCache, query: Array, key: Array, value: Array) -> Array:
        length = cache.length
        cache.keys[index, :, length] = key
        cache.values[index, :, length] = value
        keys = cache.keys[index, :, : length + 1]
        scores = (keys @ query[:, :, None])[:, :, 0] * self._scale
        mixed: Array = (softmax(scores)[:, None, :] @ cache.values[index, :, : length + 1])[:, 0]
        return mixed

    def _project(self, layer: _Layer, hidden: Array) -> tuple[Array, Array, Array]:
        """Query, key and value, each float32[rows, heads, width / heads]."""
        projected = (normalize(hidden) @ layer.qkv).reshape(len(hidden), 3, self.config.heads, -1)
        return projected[:, 0], projected[:, 1], projected[:, 2]

    def _logits(self, hidden: Array) -> Array:
        logits: Array = normalize(hidden) @ self.embedding.T
        return logits

    @property
    def _scale(self) -> float:
        return 1 / math.sqrt(self.config.width // self.config.heads)


def feed_forward(layer: _Layer, hidden: Array) -> Array:
    """The layer's second half: hidden plus its rectified projection."""
    out: Array = hidden + np.maximum(normalize(hidden) @ layer.up, 0) @ layer.down
    return out


def normalize(hidden: Array) -> Array:
    """Root-mean-square normalization over the last axis."""
    out: Array = hidden / np.sqrt(np.mean(hidden * hidden, axis=-1, keepdims=True) + np.float32(1e-6))
    return out


def softmax(scores: Array) -> Array:
    """Softmax over the last axis."""
    exponents = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out: Array = exponents / exponents.sum(axis=-1, keepdims=True)
    return out
