"""The example service is a real one: its tokenizer loses nothing, and its KV cache computes what a full pass would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.examples.load import Result
from perfscope.examples.service.engine import Engine, Overloaded
from perfscope.examples.service.model import Config, KVCache, Transformer
from perfscope.examples.service.tokenizer import Tokenizer

TOKENIZER = Tokenizer()
CONFIG = Config(vocabulary=512, width=32, layers=2, heads=2, context=64)
MODEL = Transformer(CONFIG)
tokens = st.lists(st.integers(0, 511), min_size=2, max_size=20)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_decoding_an_encoded_text_gives_it_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_the_tokenizer_merges_what_it_learned() -> None:
    text = "the service answers the request"
    assert len(TOKENIZER.encode(text)) < len(text) / 2
    assert max(TOKENIZER.encode(text)) < Config().vocabulary


@given(tokens)
def test_decoding_with_the_cache_equals_a_full_pass(ids: list[int]) -> None:
    cache = KVCache(CONFIG)
    MODEL.prefill(ids[:1], cache)
    for token in ids[1:]:
        logits = MODEL.decode([token], [cache])[0]
    np.testing.assert_allclose(logits, MODEL.prefill(ids, KVCache(CONFIG)), rtol=1e-3, atol=1e-4)


@given(tokens, tokens)
def test_sequences_decoded_together_do_not_see_each_other(first: list[int], second: list[int]) -> None:
    alone, together = [], [KVCache(CONFIG), KVCache(CONFIG)]
    for ids, cache in zip((first, second), together, strict=True):
        own = KVCache(CONFIG)
        MODEL.prefill(ids[:-1], own)
        MODEL.prefill(ids[:-1], cache)
        alone.append(MODEL.decode([ids[-1]], [own])[0])
    batched = MODEL.decode([first[-1], second[-1]], together)
    np.testing.assert_allclose(batched, np.array(alone), rtol=1e-3, atol=1e-4)


def test_a_request_gives_the_tokens_it_asked_for_and_always_the_same() -> None:
    engine = Engine(MODEL, TOKENIZER, workers=2, batch=3, queue_size=64)
    answers = [engine.submit("the server is slow", 5).result(timeout=30) for _ in range(2)]
    crowd = [engine.submit("the server is slow", 5) for _ in range(8)]
    answers += [future.result(timeout=30) for future in crowd]
    engine.close()
    assert {answer.text for answer in answers} == {answers[0].text}
    assert {answer.new_tokens for answer in answers} == {5}
    assert {answer.prompt_tokens for answer in answers} == {len(TOKENIZER.encode("the server is slow"))}


def test_a_long_prompt_keeps_its_end_within_the_context() -> None:
    engine = Engine(MODEL, TOKENIZER, workers=1, batch=1, queue_size=4)
    answer = engine.submit("@" * 500, 10).result(timeout=30)
    engine.close()
    assert (answer.prompt_tokens, answer.new_tokens) == (CONFIG.context - 10, 10)


def test_a_full_queue_refuses() -> None:
    engine = Engine(MODEL, TOKENIZER, workers=0, batch=1, queue_size=1)
    engine.submit("first", 1)
    with pytest.raises(Overloaded):
        engine.submit("second", 1)


def test_percentiles_are_nearest_rank() -> None:
    result = Result(seconds=2.0, latencies_ms=[float(n) for n in range(100, 0, -1)])
    assert (result.percentile(50), result.percentile(95), result.percentile(99)) == (50.0, 95.0, 99.0)
    assert result.to_json()["requests_per_second"] == 50.0
    assert Result().percentile(50) is None
    assert Result().to_json()["p50_ms"] is None
