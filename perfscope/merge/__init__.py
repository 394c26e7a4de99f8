"""Merging: from tables of many tools to slices of each thread's time, and from slices to one call tree.

tables.py, sources.py   a session's tables by thread, in the columns that the merge needs
waits.py                what a blocked thread waited for
stretches.py            a thread's scheduler records -> its stretches off the CPU, a part of its time after the other
timeline.py             tables -> ThreadSlices, one thread at a time, conserved to the nanosecond
facts.py                ThreadSlices -> time by thread, stack, state and window; thread_time for the rules
tree.py, notes.py       these -> CallTree with several weights, and what must be said beside it
hot.py                  where a selection of thread_time is spent
"""

from perfscope.merge.calltree import WEIGHTS, CallTree, Timeline, TreeFrame
from perfscope.merge.facts import thread_time
from perfscope.merge.hot import HotSpot, hot_spot
from perfscope.merge.slices import STATES, ThreadSlices
from perfscope.merge.timeline import slices_of
from perfscope.merge.tree import build_tree

__all__ = [
    "STATES",
    "WEIGHTS",
    "CallTree",
    "HotSpot",
    "ThreadSlices",
    "Timeline",
    "TreeFrame",
    "build_tree",
    "hot_spot",
    "slices_of",
    "thread_time",
]
