"""What is kept for the next process: complete, this user's own, or not taken."""

import os
import random
import signal
import time
import warnings

import pytest

from aotkit.keep import keep, kept, kept_file, machine, name_of, store
from aotkit.keep.store import folder

DATA = {"verdict": "right", "numbers": [1.5, None, True], "text": "läßt\n\x00"}


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("AOTKIT_KEEP", "1")


def records():
    return sorted(folder().glob("*.json"))


def only_record():
    (path,) = records()
    return path


def refused(kind, parts):
    with pytest.warns(RuntimeWarning, match="has been changed since"):
        found = kept(kind, parts)
    return found is None


def test_what_was_kept_is_found():
    assert kept("some", ["a", "b"]) is None
    keep("some", ["a", "b"], DATA)
    assert kept("some", ["a", "b"]) == DATA


def test_what_differs_in_anything_is_another():
    keep("some", ["a", "b"], DATA)
    for kind, parts in (("other", ["a", "b"]), ("some", ["a"]), ("some", ["ab"]), ("some", ["a", "b", ""])):
        assert kept(kind, parts) is None


def test_a_later_record_takes_the_place_of_an_earlier_one():
    keep("some", ["a"], DATA)
    keep("some", ["a"], {"verdict": "new"})
    assert kept("some", ["a"]) == {"verdict": "new"}
    assert len(records()) == 1


def test_an_altered_byte_anywhere_is_refused():
    keep("some", ["a"], DATA)
    path = only_record()
    whole = path.read_bytes()
    for position in range(len(whole)):
        altered = bytearray(whole)
        altered[position] ^= 1 << random.Random(position).randrange(8)
        path.write_bytes(altered)
        assert refused("some", ["a"]), position
    path.write_bytes(whole)
    assert kept("some", ["a"]) == DATA


def test_a_part_of_a_record_is_refused():
    keep("some", ["a"], DATA)
    path = only_record()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert refused("some", ["a"]), length


def test_what_is_refused_is_written_anew():
    keep("some", ["a"], DATA)
    only_record().write_bytes(b"")
    assert refused("some", ["a"])
    keep("some", ["a"], DATA)
    assert kept("some", ["a"]) == DATA


def test_a_record_cannot_stand_in_for_another():
    keep("some", ["a"], DATA)
    source = only_record()
    keep("some", ["b"], {"verdict": "wrong"})
    (other,) = set(records()) - {source}
    source.write_bytes(other.read_bytes())
    assert refused("some", ["a"])


def test_a_record_that_somebody_else_signed_is_refused(monkeypatch, tmp_path):
    keep("some", ["a"], DATA)
    own = only_record()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))
    keep("some", ["a"], {"verdict": "forged"})
    forged = only_record().read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    own.write_bytes(forged)
    assert refused("some", ["a"])


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_nothing_is_taken_from_a_folder_that_others_may_write_to(mode):
    keep("some", ["a"], DATA)
    folder().chmod(mode)
    assert refused("some", ["a"])
    keep("some", ["b"], DATA)
    assert len(records()) == 1
    folder().chmod(0o700)
    assert kept("some", ["a"]) == DATA


def test_folder_and_files_are_the_users_alone():
    keep("some", ["a"], DATA)
    assert [path.stat().st_mode & 0o077 for path in (folder(), *folder().iterdir())] == [0, 0, 0]


@pytest.mark.parametrize("secret", [b"", b"short", b"x" * 64])
def test_without_the_secret_nothing_is_taken(secret):
    keep("some", ["a"], DATA)
    (folder() / store.SECRET).write_bytes(secret)
    assert refused("some", ["a"])


def test_a_full_disk_loses_the_record_alone(monkeypatch):
    keep("some", ["a"], DATA)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        keep("some", ["a"], {"verdict": "new"})
        keep("some", ["b"], DATA)
    assert kept("some", ["a"]) == DATA
    assert kept("some", ["b"]) is None
    assert len([*folder().iterdir()]) == 2  # with the secret


def test_a_folder_that_cannot_be_made_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep("some", ["a"], DATA)
    assert kept("some", ["a"]) is None


def test_nothing_is_kept_on_demand(monkeypatch):
    monkeypatch.setenv("AOTKIT_KEEP", "0")
    keep("some", ["a"], DATA)
    assert folder() is None
    monkeypatch.setenv("AOTKIT_KEEP", "")
    assert kept("some", ["a"]) is None


@pytest.mark.sweep
def test_processes_that_are_killed_leave_whole_records_or_none():
    large = {"numbers": [*range(20_000)]}
    random_source = random.Random(0)
    for _ in range(100):
        if (child := os.fork()) == 0:
            while True:
                keep("some", ["a"], large)
        time.sleep(random_source.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert kept("some", ["a"]) in (None, large)
    keep("some", ["a"], large)
    assert kept("some", ["a"]) == large


def test_processes_that_begin_together_agree_on_the_secret():
    children = []
    for number in range(8):
        if (child := os.fork()) == 0:
            keep("some", [str(number)], DATA)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert [kept("some", [str(number)]) for number in range(8)] == [DATA] * 8


def test_what_nobody_asks_for_goes_first(monkeypatch):
    for number in range(5):
        keep("some", [str(number)], DATA)
    size = records()[0].stat().st_size
    for age, path in enumerate(sorted(records(), key=lambda path: path.stat().st_mtime_ns)):
        os.utime(path, (age, age))
    assert kept("some", ["0"]) == DATA  # asked for: the newest now
    monkeypatch.setattr(store, "MOST_BYTES", 3 * size)
    keep("some", ["5"], DATA)
    assert sum(path.stat().st_size for path in records()) <= 3 * size
    assert kept("some", ["0"]) == DATA
    assert kept("some", ["5"]) == DATA


def test_what_killed_processes_have_begun_is_deleted_when_it_is_old():
    keep("some", ["a"], DATA)
    begun = [folder() / f"{store.UNFINISHED}{name}" for name in ("old", "new")]
    for path in begun:
        path.write_bytes(b"half")
    os.utime(begun[0], (0, 0))
    keep("some", ["b"], DATA)
    assert [path.exists() for path in begun] == [False, True]
    assert len(records()) == 2


def test_files_lie_beside_the_record_that_names_them():
    content = b"library" * 1000
    name = name_of(content, ".so")
    assert kept_file(name) is None
    keep("some", ["a"], {"library": name}, {name: content})
    assert kept_file(name).read_bytes() == content
    assert kept_file(kept("some", ["a"])["library"]) is not None
    assert [path.stat().st_mode & 0o077 for path in folder().iterdir()] == [0, 0, 0]


@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda c: b"L" + c[1:], lambda c: b"", lambda c: c + b"\0"])
def test_a_file_with_another_content_is_none_and_is_written_anew(damage):
    content = b"library" * 1000
    name = name_of(content, ".z")
    keep("some", ["a"], DATA, {name: content})
    (folder() / name).write_bytes(damage(content))
    assert kept_file(name) is None
    keep("some", ["a"], DATA, {name: content})
    assert kept_file(name).read_bytes() == content


def test_only_names_of_contents_are_files(tmp_path):
    content = b"library"
    name = name_of(content, ".so")
    keep("some", ["a"], DATA, {name: content})
    (tmp_path / name).write_bytes(content)
    (folder() / "x.so").write_bytes(content)
    for other in (f"../{name}", f"../../{name}", str(tmp_path / name), "x.so", "secret", f"{name}\n", name.upper()):
        assert kept_file(other) is None
    assert kept_file(name_of(content, ".json")) is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_no_file_is_taken_from_a_folder_that_others_may_write_to(mode):
    name = name_of(b"library", ".so")
    keep("some", ["a"], DATA, {name: b"library"})
    folder().chmod(mode)
    assert kept_file(name) is None
    folder().chmod(0o700)
    assert kept_file(name) is not None


def test_no_file_is_taken_from_a_folder_of_somebody_else(monkeypatch):
    name = name_of(b"library", ".so")
    keep("some", ["a"], DATA, {name: b"library"})
    monkeypatch.setattr(os, "getuid", lambda: folder().stat().st_uid + 1)
    assert kept_file(name) is None
    assert refused("some", ["a"])


def test_files_go_with_the_rest_where_there_is_too_much(monkeypatch):
    names = []
    monkeypatch.setattr(store, "MOST_BYTES", 3000)
    for number in range(6):
        content = bytes([number]) * 1000
        names.append(name_of(content, ".so"))
        keep("some", [str(number)], {"library": names[-1]}, {names[-1]: content})
        for path in folder().iterdir():
            os.utime(path, (number, number)) if path.stat().st_mtime > 100 else None
    found = [name for name in names if kept_file(name) is not None]
    assert found
    assert len(found) <= 3
    assert names[-1] in found


def test_the_machine_is_the_same_while_nothing_changes(monkeypatch):
    before = machine()
    assert machine() == before
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert machine() != before


def test_nothing_is_said_where_all_is_well():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keep("some", ["a"], DATA)
        kept("some", ["a"])
        kept("some", ["b"])
