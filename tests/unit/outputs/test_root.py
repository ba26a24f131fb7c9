# SPDX-License-Identifier: Apache-2.0
"""Does a folder keep one id, whoever makes it, and is anything else refused in one sentence?"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from penstock.errors import OutputFailed, PenstockError, UsageError
from penstock.ids import SeededIds, SystemIds
from penstock.outputs.paths import Disk
from penstock.outputs.root import OutputRoot, find_root, open_root


def test_a_root_is_made_once_and_found_again(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b" / "datasets"

    assert find_root(place) is None
    made = open_root(place, SystemIds())
    again, found = open_root(place, SystemIds()), find_root(place)

    assert found is not None
    assert made.id == again.id == found.id
    assert sorted(os.listdir(place)) == [".penstock-root", ".staging"]


def test_a_folder_without_id_is_no_root_and_looking_makes_none(tmp_path: Path) -> None:
    assert find_root(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_racing_makers_agree(tmp_path: Path) -> None:
    place = tmp_path / "datasets"
    start, found = threading.Barrier(8), set()

    def make() -> None:
        start.wait()
        found.add(open_root(place, SystemIds()).id)

    makers = [threading.Thread(target=make) for _ in range(8)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()

    assert len(found) == 1
    assert sorted(os.listdir(place)) == [".penstock-root", ".staging"]


def test_the_loser_of_a_race_takes_the_id_of_the_winner(tmp_path: Path) -> None:
    class Slow(Disk):
        def link(self, folder: int, name: str, new: str) -> None:
            winner.append(open_root(tmp_path, SeededIds(7)))
            super().link(folder, name, new)

    winner: list[OutputRoot] = []

    assert open_root(tmp_path, SeededIds(1), Slow()).id == winner[0].id


@pytest.mark.parametrize(
    "content",
    [b"", b"penstock-root 1 root-1", b"penstock-root 1 \n", b"\0" * 30, b"x" * 5000, b"\xff\n"],
)
def test_a_damaged_id_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".penstock-root").write_bytes(content)

    with pytest.raises(OutputFailed, match=r"\.penstock-root is damaged"):
        open_root(tmp_path, SystemIds())
    with pytest.raises(OutputFailed, match=r"\.penstock-root is damaged"):
        find_root(tmp_path)
    assert (tmp_path / ".penstock-root").read_bytes() == content


def test_an_id_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    other = open_root(tmp_path / "other", SystemIds())
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / ".penstock-root").symlink_to(Path(other.path) / ".penstock-root")

    with pytest.raises(OutputFailed, match="cannot be read"):
        open_root(tmp_path / "root", SystemIds())


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "file" / "nowhere")

    for place in ("file", "file/below", "loop", "loop/below", "x" * 300, "nul\0", "dangling"):
        with pytest.raises(PenstockError) as caught:
            open_root(str(tmp_path / place), SystemIds())
        assert str(caught.value).startswith("The output root ")
    assert sorted(os.listdir(tmp_path)) == ["dangling", "file", "loop"]


def test_the_way_to_a_root_may_lead_through_links(tmp_path: Path) -> None:
    made = open_root(tmp_path / "real", SystemIds())
    (tmp_path / "link").symlink_to(tmp_path / "real")

    found = find_root(tmp_path / "link")

    assert found is not None
    assert (found.path, found.id) == (made.path, made.id)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
@pytest.mark.parametrize("call", ["make_folder", "create", "write", "sync", "link", "sync_folder"])
def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    class Refusing(Disk):
        pass

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Refusing, call, refuse)

    with pytest.raises(OutputFailed) as caught:
        open_root(tmp_path / "datasets", SystemIds(), Refusing())

    assert caught.value.errno == number
    assert os.strerror(number).lower() in str(caught.value)
    left = tmp_path / "datasets"
    assert not left.exists() or set(os.listdir(left)) <= {".penstock-root", ".staging"}


def test_a_root_that_was_exchanged_or_unmounted_is_not_entered(tmp_path: Path) -> None:
    root = open_root(tmp_path / "datasets", SeededIds(1))
    (tmp_path / "datasets").rename(tmp_path / "gone")

    with pytest.raises(OutputFailed, match="cannot be used: no such file"), root.opened():
        pass
    (tmp_path / "datasets").mkdir()
    with pytest.raises(OutputFailed, match="has none now"), root.opened():
        pass
    open_root(tmp_path / "datasets", SeededIds(2))
    with pytest.raises(OutputFailed, match="is now root-"), root.opened():
        pass


def test_a_path_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="not a path"):
        open_root("nul\0", SystemIds())


def test_an_id_that_goes_while_it_is_made_is_told(tmp_path: Path) -> None:
    class Hasty(Disk):
        def make_folder(self, folder: int, name: str) -> bool:
            if name == ".staging":
                self.unlink(folder, ".penstock-root")
            return super().make_folder(folder, name)

    with pytest.raises(OutputFailed, match="vanished right after it was created"):
        open_root(tmp_path / "datasets", SystemIds(), Hasty())


def test_a_file_system_that_cannot_sync_folders_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(refused, os.strerror(refused))

    monkeypatch.setattr(os, "fsync", refuse)
    folder = Disk().open_root(str(tmp_path))

    refused = errno.EINVAL
    Disk().sync_folder(folder)
    refused = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        Disk().sync_folder(folder)
    os.close(folder)


def test_a_root_tells_where_it_is(tmp_path: Path) -> None:
    root = open_root(tmp_path, SeededIds(1))

    assert repr(root) == f"<OutputRoot {root.path} {root.id}>"
