"""Sends requests to the example stack and says how long they took: python -m perfscope.examples.load URL."""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_TEXT = (
    "why is my service slow when the queue is short and the model small please explain where the time goes "
    "step by step the answer should name the thread the lock and the line that holds it"
)


@dataclass
class Result:
    """What a run saw. latencies_ms: one a successful request, in order of completion."""

    seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)
    failures: int = 0

    def percentile(self, percent: float) -> float | None:
        """Nearest-rank percentile of the latencies in ms; None without any."""
        ordered = sorted(self.latencies_ms)
        return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else None

    def to_json(self) -> dict[str, float | int | None]:
        return {
            "requests": len(self.latencies_ms),
            "failures": self.failures,
            "seconds": round(self.seconds, 3),
            "requests_per_second": round(len(self.latencies_ms) / self.seconds, 2) if self.seconds else None,
            "p50_ms": self.percentile(50),
            "p95_ms": self.percentile(95),
            "p99_ms": self.percentile(99),
        }


def run(
    url: str,
    seconds: float,
    clients: int,
    max_tokens: int,
    stop: threading.Event | None = None,
    result: Result | None = None,
) -> Result:
    """Keeps `clients` connections busy for `seconds`, or until `stop`: each sends its next request when the last was
    answered. It sends the same requests each time. `result`, if given, is filled as answers come."""
    address = urlsplit(url)
    result = result or Result()
    stop = stop or threading.Event()
    words = _TEXT.split()
    lock = threading.Lock()
    begin = time.monotonic()

    def client(number: int) -> None:
        pick = random.Random(number)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        while time.monotonic() - begin < seconds and not stop.is_set():
            prompt = " ".join(pick.choices(words, k=pick.randint(12, 40)))
            body = json.dumps({"prompt": prompt, "max_tokens": max_tokens})
            sent = time.monotonic()
            try:
                connection.request("POST", "/v1/generate", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                response.read()
                good = response.status == 200
            except (OSError, http.client.HTTPException):
                connection.close()
                good = False
            took = (time.monotonic() - sent) * 1e3
            with lock:
                if good:
                    result.latencies_ms.append(took)
                else:
                    result.failures += 1
            if not good:
                stop.wait(0.05)  # a server that refuses is not asked again at once
        connection.close()

    threads = [threading.Thread(target=client, args=(n,), name=f"client-{n}") for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result.seconds = time.monotonic() - begin
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="load", description=__doc__)
    parser.add_argument("url", help="address of the service or the gateway, e.g. http://127.0.0.1:8080")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=16)
    arguments = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    result = run(arguments.url, arguments.seconds, arguments.clients, arguments.max_tokens, stop)
    print(json.dumps(result.to_json()), flush=True)


if __name__ == "__main__":
    main()
