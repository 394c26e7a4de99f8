"""Reading JSON and text of any size, plain or gzipped, piecewise and with bounds."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from perfscope.errors import InputError

CHUNK = 1 << 20
MAX_STREAM = 4 << 30
"""Most text read from one file, in bytes after decompression: a gzip bomb ends here, a day of py-spy doesn't."""
MAX_VALUE = 1 << 18
"""Longest single element of a streamed array, in characters. One of py-spy's is about 200."""
MAX_WHOLE = 256 << 20
"""Largest file that is parsed in one piece (speedscope), in bytes after decompression."""
_SPACE = re.compile(r"[ \t\r\n]*")
MAX_JUNK = 100_000
"""Elements or lines that make no sense, after which a file that holds more of these than of others is given up."""
MAX_STACKS = 4_000_000
"""Most distinct stacks kept (~1 GB). A real process has some thousands; a file made to exhaust memory ends here."""
MAX_ROWS = 10_000_000


class Unsound(Exception):
    """What follows in the file can't be read. The message says why; offset: in bytes of the (decompressed) file."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@contextmanager
def open_binary(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file, decompressing it if it starts like gzip. Raises InputError if it can't be opened."""
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(path.open("rb"))
            magic = raw.read(2)
            raw.seek(0)
        except OSError as error:
            raise InputError(f"{path}: can't be read: {error.strerror}") from None
        if magic == b"\x1f\x8b":
            yield cast("IO[bytes]", stack.enter_context(gzip.GzipFile(fileobj=raw, mode="rb")))
        else:
            yield raw


def chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """Pieces of the stream. Raises Unsound where it is damaged or goes beyond MAX_STREAM."""
    read1 = cast(Any, stream).read1  # unlike read, gives what comes before the damage
    done = 0
    while True:
        try:
            data: bytes = read1(CHUNK)
        except (OSError, EOFError, zlib.error) as error:
            raise Unsound(f"compressed data damaged ({error})", done) from None
        if not data:
            return
        done += len(data)
        if done > MAX_STREAM:
            raise Unsound(f"longer than {MAX_STREAM >> 30} GiB", done)
        yield data


def read_whole(path: Path) -> bytes:
    """All of a file, decompressed. Raises InputError if it is damaged or larger than MAX_WHOLE."""
    pieces: list[bytes] = []
    size = 0
    with open_binary(path) as stream:
        try:
            for piece in chunks(stream):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_WHOLE:
                    raise InputError(f"{path}: larger than {MAX_WHOLE >> 20} MiB, which is the most read in one piece")
        except Unsound as error:
            raise InputError(f"{path}: {error} at byte {error.offset}") from None
    return b"".join(pieces)


def json_array(stream: IO[bytes]) -> Iterator[Any]:
    """Elements of a JSON array, one at a time, whether it is the whole file or `{"traceEvents": [...]}`.

    Raises Unsound at the first place that is no JSON, or where the file ends before the array does.
    """
    decoder: Any = json.JSONDecoder()
    scan = decoder.scan_once  # the C scanner itself: raw_decode wraps it in a Python call
    source = chunks(stream)
    text = ""
    position = 0  # in text
    consumed = 0  # bytes of the file before text
    pending = b""

    def more() -> bool:
        nonlocal text, position, consumed, pending
        piece = next(source, None)
        if piece is None:
            return False
        consumed += len(text[:position].encode("utf-8", "surrogatepass"))
        data = pending + piece
        cut = _utf8_end(data)
        pending = data[cut:]
        text = text[position:] + data[:cut].decode("utf-8", "replace")
        position = 0
        return True

    def offset() -> int:
        return consumed + len(text[:position].encode("utf-8", "surrogatepass"))

    def skip_space() -> str:
        nonlocal position
        while True:
            position = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # it matches the empty text too
            if position < len(text):
                return text[position]
            if not more():
                return ""

    if skip_space() == "{":
        start = text.find('"traceEvents"')
        while start < 0 and len(text) < MAX_VALUE and more():
            start = text.find('"traceEvents"')
        if start < 0:
            raise Unsound('no "traceEvents" in it', 0)
        position = start + len('"traceEvents"')
        if skip_space() != ":":
            raise Unsound("expected ':'", offset())
        position += 1
    if skip_space() != "[":
        raise Unsound("expected '['", offset())
    position += 1
    if skip_space() == "]":
        return
    while True:
        if not skip_space():
            raise Unsound("the file ends inside the list of events", offset())
        while True:
            try:
                value, end = scan(text, position)
                if end < len(text):  # else a number could go on in the next piece
                    break
            except (StopIteration, ValueError, RecursionError) as error:
                if isinstance(error, RecursionError) or len(text) - position > MAX_VALUE:
                    raise Unsound("not JSON", offset()) from None
            if not more():
                raise Unsound("the file ends inside the list of events, or isn't JSON from here on", offset())
        yield value
        position = end
        separator = skip_space()
        if separator == "]":
            return
        if separator != ",":
            raise Unsound("expected ',' or ']'" if separator else "the file ends inside the list of events", offset())
        position += 1


def _utf8_end(data: bytes) -> int:
    """Length of `data` without a UTF-8 sequence that its end cuts apart."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0xC0:
            width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if back < width else len(data)
        if byte & 0x80 == 0:
            break
    return len(data)
