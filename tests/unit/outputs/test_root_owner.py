# SPDX-License-Identifier: Apache-2.0
"""Does a root keep the slices of one store only?"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.errors import OutputFailed, UsageError
from penstock.ids import SeededIds
from penstock.outputs.root import OutputRoot, claim_root, open_root


@pytest.fixture
def root(tmp_path: Path) -> OutputRoot:
    return open_root(tmp_path / "datasets", SeededIds(1))


def test_the_first_store_owns_a_root_for_good(root: OutputRoot) -> None:
    claim_root(root, "store-a")
    claim_root(root, "store-a")

    with pytest.raises(UsageError, match=r"another store \(store-a; this one is store-b\)"):
        claim_root(root, "store-b")
    claim_root(root, "store-a")


def test_a_person_may_give_it_to_another(root: OutputRoot) -> None:
    claim_root(root, "store-a")
    Path(root.path, ".penstock-store").unlink()

    claim_root(root, "store-b")

    assert Path(root.path, ".penstock-store").read_text() == "penstock-store 1 store-b\n"


def test_of_racing_stores_one_wins(root: OutputRoot) -> None:
    refused: list[str] = []
    ready = threading.Barrier(8)

    def claim(owner: str) -> None:
        ready.wait()
        try:
            claim_root(root, owner)
        except UsageError:
            refused.append(owner)

    owners = [f"store-{n}" for n in range(8)]
    threads = [threading.Thread(target=claim, args=(owner,)) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (winner,) = set(owners) - set(refused)
    assert Path(root.path, ".penstock-store").read_text() == f"penstock-store 1 {winner}\n"
    assert sorted(path.name for path in Path(root.path).iterdir()) == [
        ".penstock-root",
        ".penstock-store",
        ".staging",
    ]


def test_what_a_dead_process_left_is_in_nobodys_way(root: OutputRoot) -> None:
    Path(root.path, ".penstock-store.store-a").write_text("half")

    claim_root(root, "store-a")

    assert not Path(root.path, ".penstock-store.store-a").exists()


@pytest.mark.parametrize("content", [b"", b"penstock-store 1 a", b"\xff" * 400])
def test_a_damaged_name_is_refused(root: OutputRoot, content: bytes) -> None:
    place = Path(root.path, ".penstock-store")
    place.write_bytes(content)

    with pytest.raises(OutputFailed, match=r"\.penstock-store is damaged"):
        claim_root(root, "store-a")
    assert place.read_bytes() == content


def test_a_link_is_not_followed(root: OutputRoot, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("penstock-store 1 store-a\n")
    Path(root.path, ".penstock-store").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OutputFailed, match="cannot be used"):
        claim_root(root, "store-a")
