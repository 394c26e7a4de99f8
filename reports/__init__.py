"""Outputs, one module each. A report knows no rule: only the call tree, the session and findings.

flame.py        one self-contained HTML page with its own viewer (assets/)
folded.py       `a;b;c count` lines
speedscope.py   speedscope's JSON
terminal.py     sessions and diagnoses as text
markdown.py     a diagnosis for CI summaries
units.py        numbers and foreign names, made fit to read
"""
