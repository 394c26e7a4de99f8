"""The shipped recording of a GPU program, put into the user's directory as if it had been recorded there."""

from __future__ import annotations

import shutil
from pathlib import Path

from perfscope.errors import InputError, UsageError
from perfscope.model.session import Session

SHIPPED = Path(__file__).parents[1] / "examples" / "gpu" / "llm.perfscope"
"""Three seconds of an LLM's decoding on one GPU, with a JVM beside it. docs/gpu.md tells how it was made."""

ABOUT = """a recording made on a machine with an NVIDIA H200: an LLM decodes in Python, with a JVM beside it.
Nothing is recorded now, and no GPU is needed.
"""

LOOK = """
session      {session}
flame graph  {flame}  (open it in a browser)

Widths are the GPU's time: pink is a kernel under the line that launched it, striped [GPU idle] the code that kept it
waiting. Point at a kernel for its launches and mean duration; press w for the wall and CPU time of the host.
Then: perfscope show {session}
      perfscope diagnose {session} --all"""


def copy(target: Path, *, force: bool) -> None:
    """Copies the shipped session to `target`. Raises UsageError if `target` is in the way, InputError if it can't."""
    Session.open(SHIPPED).check()
    try:
        if target.exists():
            if not force or target.is_symlink() or not (target / "session.json").is_file():
                raise UsageError(
                    f"{target} is in the way and no session: it isn't replaced", hint="another name with -o"
                )
            shutil.rmtree(target)
        (target / "tables").mkdir(parents=True)
        for file in sorted(SHIPPED.rglob("*"), reverse=True):  # session.json, which makes it a session, after tables
            if file.is_file():
                shutil.copyfile(file, target / file.relative_to(SHIPPED))  # not its mode: it may be read-only
    except OSError as error:
        raise InputError(f"{target}: can't be written: {error.strerror}", hint="choose another place with -o") from None
