"""C++ names as people know them, by the demangler of the C++ runtime on this host."""

from __future__ import annotations

import ctypes
import functools
from typing import Any


@functools.cache
def _demangler() -> tuple[Any, Any] | None:
    try:
        runtime = ctypes.CDLL("libstdc++.so.6")
        demangle, free = runtime.__cxa_demangle, ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return None
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free.argtypes = [ctypes.c_void_p]
    return demangle, free


def demangle(name: str) -> str:
    """The demangled form of an Itanium C++ ABI name; anything else comes back as it is."""
    tools = _demangler() if name.startswith("_Z") else None
    if tools is None:
        return name
    status = ctypes.c_int()
    result = tools[0](name.encode(), None, None, ctypes.byref(status))
    if not result or status.value:
        return name
    try:
        return ctypes.string_at(result).decode(errors="replace")
    finally:
        tools[1](result)
