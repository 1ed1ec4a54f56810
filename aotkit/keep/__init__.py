"""What outlives a process: small records of data, signed, each in a file of its own, and what they depend on."""

from aotkit.keep.machine import machine
from aotkit.keep.store import keep, kept

__all__ = ["keep", "kept", "machine"]
