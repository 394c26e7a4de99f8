"""The session: what a recording is on disk and in memory. Knows no tool, no rule and no output."""
