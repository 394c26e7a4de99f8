"""Builds the CUDA activity probe where a C compiler and CUPTI's headers are; the package works without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = ("activity.c", "pystack.c", "spool.c")
LIBRARY = "libperfscope_cuda.so"


def header_folders() -> list[Path]:
    """Folders that together hold cupti.h, cuda.h and what they include: a toolkit's, or those of NVIDIA's wheels."""
    places = [Path(root) / "include" for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if root]
    places += [Path(entry) / "nvidia" / "cu13" / "include" for entry in sys.path if entry]
    return [place for place in places if (place / "cupti.h").exists() and (place / "cuda.h").exists()]


class ProbeHook(BuildHookInterface):  # type: ignore[type-arg]  # generic for type checkers alone
    """Compiles probes/cuda into a shared library inside the package; on any failure says why and goes on without."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / "perfscope" / "probes" / "cuda"
        library = folder / LIBRARY
        compiler, headers = shutil.which(os.environ.get("CC", "cc")), header_folders()
        if compiler is None or not headers:
            missing = "a C compiler" if compiler is None else "cupti.h (CUDA toolkit, or nvidia-cuda-cupti)"
            self.app.display_warning(f"the CUDA probe isn't built: {missing} is missing")
            return
        library.unlink(missing_ok=True)  # never written over: a recorded program may have it mapped
        command = [compiler, "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-isystem", str(headers[0])]
        command += ["-o", str(library), *(str(folder / source) for source in SOURCES), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self.app.display_warning(f"the CUDA probe isn't built: {done.stderr.strip()[:500]}")
            return
        build_data["artifacts"].append(f"perfscope/probes/cuda/{LIBRARY}")
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
