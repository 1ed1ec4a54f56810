"""Capture: a call of Python -> what it reads, guards that compare it, and a compilation for it.

`direct` traces a function as it is; `dynamo` lets TorchDynamo capture it. An `entry` is one compilation.
"""
