"""Records of data, each in a file of its own: JSON, signed with a secret of this user's.

A file that is damaged, or that somebody else wrote, is not taken. Nothing is ever unpickled. Several processes may
write at a time: a file appears complete, or not at all. What is large, or no JSON, lies beside the records, under the
hash of its content, which records name: their signature covers it, too.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aotkit.torch_private.native import cache_folder

MOST_BYTES = 256 * 2**20
FOLDER = "kept"
SECRET, SUFFIX, UNFINISHED = "secret", ".json", "unfinished-"
KINDS = (SUFFIX, ".so", ".z")  # records, libraries, compressed texts
OLD_SECONDS = 3600  # what is unfinished for longer, a process that was killed has left
SECRET_BYTES = 32
_OTHERS_MAY_WRITE = 0o022


def folder() -> Path | None:
    """Where records are; None where nothing is to be kept: `AOTKIT_KEEP=0`."""
    return None if os.environ.get("AOTKIT_KEEP", "") == "0" else cache_folder() / FOLDER


def is_kept() -> bool:
    """Whether anything is kept, and taken, at all."""
    return folder() is not None


def key_of(kind: str, parts: Sequence[str]) -> str:
    """The name of a record for all these texts."""
    return hashlib.sha256(json.dumps([kind, *parts]).encode()).hexdigest()


def kept(kind: str, parts: Sequence[str]) -> Any | None:
    """What was kept for these texts; None if nothing was, or nothing that can be trusted."""
    key = key_of(kind, parts)
    if (path := _path(key)) is None:
        return None
    try:
        content, secret = path.read_bytes(), _secret(path.parent)
    except OSError:
        return None
    signature, _, text = content.partition(b"\n")
    if secret is None or not hmac.compare_digest(signature, _signature(secret, key, text)):
        warnings.warn(
            f"{path} was not written by this user's aotkit, or has been changed since. It is not used, and written "
            "anew.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    with suppress(OSError):
        os.utime(path)  # those that nobody has asked for are the first to go
    return json.loads(text)


def keep(kind: str, parts: Sequence[str], data: Mapping[str, Any], files: Mapping[str, bytes] | None = None) -> None:
    """Keep data for these texts; where that cannot be, the next process finds nothing.

    Args:
        files: what the data name, by these names: from `name_of`.
    """
    key = key_of(kind, parts)
    if (path := _path(key)) is None:
        return
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (secret := _secret(path.parent)) is None:
            return
        for name, content in (files or {}).items():
            if kept_file(name) is None:
                write_whole(path.parent / name, content)
        text = json.dumps(data).encode()
        write_whole(path, _signature(secret, key, text) + b"\n" + text)
        _prune(path.parent)


def name_of(content: bytes, kind: str) -> str:
    """What a file is called that has this content: of `.so`, a library, or `.z`, a compressed text."""
    return hashlib.sha256(content).hexdigest() + kind


def kept_file(name: str) -> Path | None:
    """Where a file of this name is; None where none is, or one with another content."""
    where = folder()
    digest, kind = os.path.splitext(name)
    if where is None or not re.fullmatch("[0-9a-f]{64}", digest) or kind not in KINDS[1:]:
        return None
    path = where / name
    try:
        with path.open("rb") as file:
            is_right = hashlib.file_digest(file, "sha256").hexdigest() == digest and _secret(where) is not None
        os.utime(path)
    except OSError:
        return None
    return path if is_right else None


def _path(key: str) -> Path | None:
    where = folder()
    return None if where is None else where / f"{key}{SUFFIX}"


def _signature(secret: bytes, key: str, text: bytes) -> bytes:
    """Of the key, too: no file can stand in for another one."""
    return hmac.new(secret, key.encode() + b"\n" + text, hashlib.sha256).hexdigest().encode()


def signature(text: bytes) -> bytes | None:
    """This user's signature of a text, whether anything is kept or not; None where there is no secret to sign with."""
    where = cache_folder() / FOLDER
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret = _secret(where)
    except OSError:
        return None
    return None if secret is None else _signature(secret, "", text)


def _secret(where: Path) -> bytes | None:
    """This user's; None in a folder that belongs to others, or that others may write to."""
    if hasattr(os, "getuid"):  # not on Windows, where the profile's folder is the user's alone
        status = where.stat()
        if status.st_uid != os.getuid() or status.st_mode & _OTHERS_MAY_WRITE:
            return None
    path = where / SECRET
    if not path.exists():
        with suppress(FileExistsError):  # another process was first
            write_whole(path, secrets.token_bytes(SECRET_BYTES), replace=False)
    secret = path.read_bytes()
    return secret if len(secret) == SECRET_BYTES else None


def write_whole(path: Path, content: bytes, replace: bool = True) -> None:
    """Have all of it in a file, or leave that as it was.

    Raises:
        OSError: it cannot be written; or it is there, and is not to be replaced.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)  # a machine that stops leaves no half of it under its name
        os.replace(name, path) if replace else os.link(name, path)
    finally:
        with suppress(OSError):  # it has been moved
            os.unlink(name)


def _prune(where: Path) -> None:
    """Delete what nobody has asked for the longest, where there is too much."""
    found = []
    with suppress(OSError):  # another process deletes, too
        for path in where.glob(f"{UNFINISHED}*"):
            if path.stat().st_mtime < time.time() - OLD_SECONDS:
                path.unlink()
    for path in (path for kind in KINDS for path in where.glob(f"*{kind}")):
        with suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= MOST_BYTES:
            return
        with suppress(OSError):
            path.unlink()
        total -= size
