"""Outputs, one module each. A report knows no rule: only the call tree, the session and findings."""
