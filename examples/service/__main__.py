"""Starts the service: python -m perfscope.examples.service [--port N]. Prints its address, runs until SIGTERM."""

from __future__ import annotations

import os

# A BLAS that starts a thread a core fights with the worker threads; read when numpy is imported, so set before it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import signal
import threading

from .engine import Engine
from .model import Config, Transformer
from .server import Server
from .tokenizer import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(prog="service", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 (default): any free one")
    parser.add_argument("--workers", type=int, default=2, help="decoding threads")
    parser.add_argument("--batch", type=int, default=4, help="sequences a worker decodes together")
    parser.add_argument("--queue", type=int, default=256, help="requests that may wait; beyond that: 503")
    arguments = parser.parse_args()

    tokenizer = Tokenizer()
    engine = Engine(Transformer(Config()), tokenizer, arguments.workers, arguments.batch, arguments.queue)
    server = Server(("127.0.0.1", arguments.port), engine)
    for number in (signal.SIGTERM, signal.SIGINT):
        # shutdown() waits for the loop that this very thread runs, so another one has to call it.
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
    server.server_close()
    engine.close()


if __name__ == "__main__":
    main()
