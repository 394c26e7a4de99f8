"""Stacks as they are: torn ones found, true ones left alone, and native frames."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyspy_helpers
from pyspy_helpers import Recording, line, looks

from perfscope.collectors.pyspy.torn import TornJudge
from perfscope.options import Options

program = pyspy_helpers.program
sampler = pyspy_helpers.sampler


LEAVES = """
import sys
def leaf_a(n):
    x = 0
    for i in range(n):
        x += i
    return x
def leaf_b(n):
    x = 1
    for i in range(n):
        x ^= i
    return x
class Model:
    def step(self, n):
        self.norm(n)
        self.attend(n)
    def norm(self, n):
        return leaf_a(n)
    def attend(self, n):
        y = leaf_b(n)
        return y
def left(n):
    leaf_a(n)
    leaf_a(n)
def right(n):
    leaf_b(n)
    leaf_b(n)
def main(n):
    model = Model()
    while True:
        left(n)
        right(n)
        model.step(n)
print(flush=True)
main(int(sys.argv[1]))
"""


CALLS = {
    ("<module>", "main"), ("main", "left"), ("main", "right"), ("main", "step"), ("left", "leaf_a"),
    ("right", "leaf_b"), ("step", "norm"), ("step", "attend"), ("norm", "leaf_a"), ("attend", "leaf_b"),
}  # fmt: skip


def test_made_up_calls_are_marked_torn_and_true_ones_are_not(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]], sampler: str
) -> None:
    target = program(LEAVES, "400")  # leaves of some 10 to 20 us
    line(target)
    # On a machine without a CPU to spare a py-spy looks a few times only: then another one goes on.
    true = 0
    for number in range(60):
        true += true_stacks(tmp_path / str(number), target.pid, sampler)
        if true > 100:
            break
    assert true > 100


def true_stacks(path: Path, pid: int, sampler: str) -> int:
    """Records it for a while, proves that exactly its made-up stacks are torn, and returns the number of the others."""
    path.mkdir()
    recording = Recording(path, Options(rate_hz=400, python_sampler=sampler))
    recording.start(pid)
    recording.until(recording.sampled(pid, 1.5))
    session = recording.finish()
    lines = LEAVES.splitlines()
    made_up = marked = true = wrongly = 0
    for row in looks(session):
        frames = [(f.function.rsplit(".", 1)[-1], f.line) for f in row["frames"]]
        # Right function below the right function, from a line that names it: the program's own call graph.
        real = all((a, b) in CALLS and b in lines[line - 1] for (a, line), (b, _) in itertools.pairwise(frames))
        if real:
            true, wrongly = true + 1, wrongly + row["torn"]
        else:
            made_up, marked = made_up + 1, marked + row["torn"]
    assert wrongly == 0 and marked == made_up
    if sampler == "bpf":
        assert made_up == 0  # its looks interrupt the thread whose stack they read
    else:
        assert (recording.report.details["torn_share"] > 0) == (made_up > 0)
    return true


LIBRARY = """
import argparse, ast, asyncio, configparser, csv, difflib, email, email.policy, http.server, io, json, logging, pprint
import re, threading, tokenize, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"path": self.path, "data": list(range(20))}, indent=1).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): logging.getLogger("x").info("%s", words)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
def client():
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/a") as reply: json.loads(reply.read())
async def passes(queue, number):
    while True:
        await asyncio.sleep(0.001); await queue.put(number); await asyncio.wait_for(queue.get(), 1)
async def tasks():
    queue = asyncio.Queue()
    await asyncio.gather(*(passes(queue, number) for number in range(5)))
threading.Thread(target=client, daemon=True).start()
threading.Thread(target=lambda: asyncio.run(tasks()), daemon=True).start()
print(flush=True)
source = open(ast.__file__).read()[:20000]
while True:
    list(tokenize.generate_tokens(io.StringIO("x = (1,\\n 2)\\n" * 50).readline))
    ast.unparse(ast.parse("def f(a, *b):\\n    return [i + 1 for i in b if a]\\n" * 30))
    re.purge(); re.compile(r"(a|b)*c[d-f]{2,3}(?P<x>\\w+)")
    list(csv.DictReader(io.StringIO("a,b\\n1,2\\n" * 50)))
    parser = argparse.ArgumentParser(); parser.add_argument("--x", type=int); parser.parse_args(["--x", "3"])
    list(difflib.unified_diff(source.splitlines()[:80], source.splitlines()[20:100]))
    configparser.ConfigParser().read_string("[a]\\nb=1")
    email.message_from_string("To: c@d\\nSubject: =?utf-8?q?x?=\\n\\nhi", policy=email.policy.default)["subject"]
    pprint.pformat({i: list(range(9)) for i in range(30)})
"""


def test_no_stack_of_a_paused_process_is_called_torn(
    tmp_path: Path, program: Callable[..., subprocess.Popen[str]]
) -> None:
    target = program(LIBRARY)
    line(target)
    recording = Recording(tmp_path, Options(rate_hz=300, blocking=True))
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 1.5))
    session = recording.finish()
    stacks = np.array([row["stack_id"] for row in looks(session)], np.int32)
    torn, judged = TornJudge(session.stacks, lambda name: Path(name).read_text() if name[0] == "/" else None).judge(
        stacks
    )
    assert len(stacks) > 100 and judged.mean() > 0.5
    assert not torn.any(), [session.stacks.path(stack) for stack in stacks[torn]][:3]
    # What the frames are called and where they lie, as the interpreter has it.
    frames = {f for row in looks(session) for f in row["frames"]}
    assert all(f.layer == "python" and f.file and (f.file[0] == "/" or f.file[0] == "<") for f in frames)
    assert all(Path(f.file).is_file() for f in frames if f.file and f.file[0] == "/")


def test_native_frames_on_request(tmp_path: Path, program: Callable[..., subprocess.Popen[str]]) -> None:
    target = program("import hashlib\nprint(flush=True)\ndata = bytes(1 << 22)\nwhile True: hashlib.sha256(data)\n")
    line(target)
    recording = Recording(tmp_path, Options(native=True))
    recording.start(target.pid)
    recording.until(recording.sampled(target.pid, 1.0))
    session = recording.finish()
    layers = {f.layer for r in looks(session) for f in r["frames"]}
    assert layers == {"python", "native"}
    assert any("--native" in note for note in recording.report.notes)
    assert not any(r["torn"] for r in looks(session))
