"""The check: compiled results next to eager's, and a verdict.

`checker` runs it; `rounding` says what counts as equal.
"""
