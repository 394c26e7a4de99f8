"""Nsight Compute: a second, replayed run of the program that measures the kernels which mattered in the first."""
