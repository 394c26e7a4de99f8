"""A small real inference stack to record: a Java gateway, a Python service, and load for both. Needs numpy alone."""
