"""The file: a zip archive of JSON, of the files that this names by their hashes, and of a signature of the JSON."""

import hashlib
import hmac
import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aotkit.errors import UnavailableError
from aotkit.keep import signature, write_whole

CONTENT, SIGNATURE = "step.json", "signature"


def write(path: str | os.PathLike[str], content: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write it whole, or leave what is there.

    Raises:
        OSError: it cannot be written.
    """
    text = json.dumps({**content, "files": [*files]}).encode()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(CONTENT, text)
        archive.writestr(SIGNATURE, signature(text) or b"")
        for member, data in files.items():
            archive.writestr(member, data)
    write_whole(Path(path), whole.getvalue())


def read(path: str | os.PathLike[str], trusted: bool) -> tuple[Mapping[str, Any], Mapping[str, bytes]]:
    """What was written.

    Args:
        trusted: take it without this user's signature, too.

    Raises:
        OSError: it cannot be read.
        UnavailableError: it is no such file, it is damaged, or another user's.
    """
    whole = Path(path).read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(whole)) as archive:
            text, signed = archive.read(CONTENT), archive.read(SIGNATURE)
            is_own = bool(own := signature(text)) and hmac.compare_digest(own or b"", signed)
            if not (is_own or trusted):
                raise UnavailableError(
                    f"{os.fspath(path)!r} was not saved by this user's aotkit, or has been changed since. It has "
                    "machine code in it, which loading runs: load it with trusted=True if you know where it is from."
                )
            content = json.loads(text)
            files = {name: archive.read(name) for name in content["files"]}
    except UnavailableError:
        raise
    except Exception as e:  # zipfile's, or of one of its decoders, in memory
        raise UnavailableError(
            f"{os.fspath(path)!r} is no compiled step, or is damaged: {type(e).__name__}: {e}. Save it again."
        ) from e
    for name, data in files.items():
        if hashlib.sha256(data).hexdigest() != os.path.splitext(name)[0]:
            raise UnavailableError(f"{os.fspath(path)!r} is damaged: {name} has other contents. Save it again.")
    return content, files
