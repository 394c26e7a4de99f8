"""Python stacks by py-spy: the collector that drives it, and readers of its files."""

from __future__ import annotations

from perfscope.collectors.pyspy.collector import PySpyCollector
from perfscope.collectors.pyspy.importing import import_file, sniff

__all__ = ["PySpyCollector", "import_file", "sniff"]
