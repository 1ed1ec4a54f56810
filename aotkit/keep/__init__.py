"""What outlives a process: small records of data, signed, each in a file of its own, and what they depend on."""

from aotkit.keep.machine import installed, machine
from aotkit.keep.store import is_kept, keep, kept, kept_file, key_of, name_of, signature, write_whole

__all__ = [
    "installed",
    "is_kept",
    "keep",
    "kept",
    "kept_file",
    "key_of",
    "machine",
    "name_of",
    "signature",
    "write_whole",
]
