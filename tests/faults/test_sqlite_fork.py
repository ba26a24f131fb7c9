# SPDX-License-Identifier: Apache-2.0
"""F31: what may a forked child do with its parent's store? Nothing, and the parent is unharmed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import StoreForked
from penstock.model.job import WorkerId
from tests.faults import sqlite_world as world

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

#: The child ends as a program does: its objects are finalised, which must not touch the file.
CHILD_ENDS = """
import os, sys, threading
from pathlib import Path
from tests.faults.sqlite_world import new_jobs, open_store
store = open_store(Path(sys.argv[1]))
busy = threading.Thread(target=lambda: [
    store.enqueue(new_jobs(1, prefix=f"b{n}-")).result() for n in range(300)])
busy.start()
children = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        sys.exit(0)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
busy.join()
store.enqueue(new_jobs(1)).result()
print(codes, store.check().result(), store.stats().result().states["queued"], flush=True)
store.close()
"""
PARENT_DIES = """
import os, signal, sys, time
from pathlib import Path
from tests.faults.sqlite_world import open_store
store = open_store(Path(sys.argv[1]))
store._writer._session._write_lock.acquire()
child = os.fork()
if child == 0:
    time.sleep(600)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
TASK_FORKS = """
import multiprocessing, sys
from penstock import Context, Penstock
from penstock.errors import StoreForked

app = Penstock("forking", store="sqlite:///" + sys.argv[1])

def in_child(pipe):
    try:
        app.enqueue(forks.job(), key="from-child")
        pipe.send("accepted")
    except StoreForked as error:
        pipe.send(str(error))

@app.task()
def forks(ctx: Context) -> str:
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    child = context.Process(target=in_child, args=(theirs,))
    child.start()
    said = mine.recv()
    child.join()
    return said

app.enqueue(forks.job(), key="one")
report = app.run(drain=True)
assert (report.done, report.errors) == (1, 0), report
assert app.store.job("from-child").result() is None
assert app.store.check().result() == []
print(app.store.job("one").result().result, flush=True)
app.close()
"""


def told(act: Callable[[], object]) -> str:
    try:
        return f"accepted {act()}"
    except StoreForked as error:
        return str(error)
    except BaseException as error:
        return repr(error)


def test_f31_every_call_in_a_forked_child_is_refused_and_the_parent_goes_on(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    other_name = tmp_path / "other-name.db"
    other_name.symlink_to(path)
    with closing(world.open_store(path)) as store:
        store.enqueue(world.new_jobs(1)).result()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover (another process)
            try:
                answers = [
                    told(lambda: store.enqueue(world.new_jobs(1, prefix="c")).result(5)),
                    told(lambda: store.beat([WorkerId("w")], 1).result(5)),
                    told(lambda: store.stats().result(5)),
                    told(lambda: store.job("k0").result(5)),
                    told(lambda: world.open_store(path)),
                    told(lambda: world.open_store(other_name)),
                ]
                store.close()
                os.write(writing, "\n".join(answers).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as said:
            answers = said.read().splitlines()

        assert len(answers) == 6
        for answer in answers:
            assert answer.startswith("This process was forked while the store"), answer
            assert "'spawn'" in answer
        assert store.enqueue(world.new_jobs(2)).result().created == {"k1"}
        assert store.job("c0").result() is None
        assert store.check().result() == []


def run_script(code: str, path: Path) -> str:
    process = world.start_python(code, str(path), cwd=path.parent)
    said, _ = process.communicate(timeout=world.SECONDS)
    assert process.returncode == 0, said
    return said.strip()


def test_f31_children_that_end_while_the_parent_writes_leave_the_file_alone(
    tmp_path: Path,
) -> None:
    assert run_script(CHILD_ENDS, tmp_path / "store.db") == "[0, 0, 0, 0, 0] [] 301"


def test_f31_a_task_whose_forked_child_enqueues_is_refused_in_the_child(tmp_path: Path) -> None:
    assert "was forked while the store" in run_script(TASK_FORKS, tmp_path / "store.db")


def test_f31_a_child_does_not_keep_the_turn_of_a_parent_that_died(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    parent = world.start_python(PARENT_DIES, str(path))
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        parent.wait(world.SECONDS)
        with closing(world.open_store(path)) as store:
            assert store.enqueue(world.new_jobs(1)).result(world.SECONDS).created == {"k0"}
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()
        if parent.stdin is not None:
            parent.stdin.close()
