"""`Graphs` as data (`model`), the viewer that shows them in a notebook or a browser, and formats of other programs.

What works on that data alone needs no torch, so nothing is imported here.
"""
