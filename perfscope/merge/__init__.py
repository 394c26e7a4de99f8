"""Merging: from tables of many tools to slices of each thread's time, and from slices to one call tree.

timeline.py     tables -> ThreadSlices, one thread at a time, conserved to the nanosecond
calltree.py     ThreadSlices -> CallTree with several weights
"""
