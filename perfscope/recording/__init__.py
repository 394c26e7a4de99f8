"""Recording: starts or finds the target, watches its processes, supervises the collectors, writes the session."""
