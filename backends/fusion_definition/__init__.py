"""From a graph of ATen operators to a definition in nvFuser's form, and from there to a callable.

What computes the definition is an engine; `engine.py` is all that is asked of one.
"""
