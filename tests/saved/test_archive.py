"""The file of a compiled step: what is altered in it is noticed, whatever zipfile makes of that."""

import hashlib

import pytest

import aotkit
from aotkit.saved import archive

CONTENT = {"name": "a step", "numbers": [1, 2, 3]}
FILES = {f"{hashlib.sha256(data).hexdigest()}.so": data for data in (b"x" * 300, b"yz" * 200)}


def test_any_altered_byte_is_damage_or_changes_nothing(tmp_path):
    file = tmp_path / "a step"
    archive.write(file, CONTENT, FILES)
    whole = file.read_bytes()
    for at, byte in enumerate(whole):
        for bits in (1, 4, 128, 255):
            file.write_bytes(whole[:at] + bytes([byte ^ bits]) + whole[at + 1 :])
            try:
                found = archive.read(file, trusted=True)
            except aotkit.UnavailableError:
                continue
            assert found[1] == FILES, (at, bits)


def test_a_file_that_is_not_there_is_no_damage(tmp_path):
    with pytest.raises(FileNotFoundError):
        archive.read(tmp_path / "nothing", trusted=True)
