"""perfscope: a profiler that merges Java, Python, native, kernel and GPU into one explained flame graph."""

__version__ = "0.1.0"
