"""Running a recording: plan, launch, watch, supervise, stop, read."""
