"""The example stack as a stranger runs it: the service, the Java gateway in front of it, and the load."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import perfscope.examples

GATEWAY = Path(perfscope.examples.__file__).parent / "gateway" / "Gateway.java"
SERVICE = [sys.executable, "-m", "perfscope.examples.service"]


@contextmanager
def server(*argv: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def call(url: str, body: bytes | None = None) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(url, body, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with server(*SERVICE) as (process, url):
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.fixture(scope="module")
def gateway(service: str) -> Iterator[str]:
    java = shutil.which("java")
    assert java, "the tests need a JDK: apt-get install default-jdk-headless"
    with server(java, str(GATEWAY), service) as (_, url):
        yield url


def test_the_same_prompt_gives_the_same_answer_directly_and_through_the_gateway(service: str, gateway: str) -> None:
    body = json.dumps({"prompt": 'why is "it" slow? \\ é', "max_tokens": 6}).encode()
    direct = call(service + "/v1/generate", body)
    forwarded = call(gateway + "/v1/generate", body)
    cached = call(gateway + "/v1/generate", body)
    assert [status for status, _ in (direct, forwarded, cached)] == [200, 200, 200]
    assert direct[1]["text"] == forwarded[1]["text"]
    assert direct[1]["new_tokens"] == 6
    assert cached == forwarded  # with its times: it came from the cache


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"prompt": 3}',
        b'{"prompt": "x", "max_tokens": 0}',
        b'{"prompt": "x", "max_tokens": "many"}',
        b'{"prompt": "x", "max_tokens": 100000}',
    ],
)
def test_a_malformed_request_is_the_callers_fault(service: str, gateway: str, body: bytes) -> None:
    for url in (service, gateway):
        status, answer = call(url + "/v1/generate", body)
        assert status == 400, url
        assert answer["error"]
    assert call(service + "/healthz") == (200, {"status": "ok"})


def test_the_gateway_says_when_the_service_is_gone() -> None:
    java = shutil.which("java")
    assert java
    with server(*SERVICE) as (process, url), server(java, str(GATEWAY), url) as (_, front):
        process.kill()
        process.wait()
        status, _ = call(front + "/v1/generate", b'{"prompt": "x"}')
    assert status == 502


def test_the_load_counts_what_it_did(service: str, gateway: str) -> None:
    for url in (service, gateway):
        done = subprocess.run(
            [sys.executable, "-m", "perfscope.examples.load", url, "--seconds", "1", "--clients", "3"],
            check=True,
            capture_output=True,
            text=True,
        )
        seen = json.loads(done.stdout)
        assert seen["failures"] == 0
        assert seen["requests"] >= 3
        assert seen["seconds"] >= 1
        assert seen["requests"] / seen["seconds"] == pytest.approx(seen["requests_per_second"], rel=0.01)
        assert 0 < seen["p50_ms"] <= seen["p95_ms"] <= seen["p99_ms"]
