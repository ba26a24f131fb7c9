# SPDX-License-Identifier: Apache-2.0
"""Do bodies in processes of their own return, fail, die and stop as others do?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.job import ErrorCategory, JobState
from tests.faults.shop import NOTES, Shop, ends_in_time
from tests.processes import environment_of_tests, is_alive, parent_of
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

APP = (
    NOTES
    + """
import resource
from penstock import Skip

@app.task()
async def child(ctx: Context, n: int) -> int:
    note("start", ctx)
    return n

@app.task(executor="process", max_attempts=1)
def works(ctx: Context, how: str, text: str = "") -> object:
    note("start", ctx)
    if how == "return":
        return {"pid": os.getpid(), "size": len(text), "key": ctx.job.key}
    if how == "raise":
        raise ValueError("it does not fit")
    if how == "skip":
        raise Skip("not today")
    if how == "exit":
        raise SystemExit(3)
    if how == "bytes":
        return b"no JSON"
    if how == "refused":
        raise ConnectionRefusedError("nobody there")
    if how == "enqueue":
        for n in range(3):
            ctx.enqueue(child.job(n=n), key=f"child-{n}")
    return None

@app.task(executor="process", max_attempts=1)
async def awaits(ctx: Context, seconds: float) -> int:
    note("start", ctx)
    await asyncio.sleep(seconds)
    note("end", ctx)
    return os.getpid()

@app.task(executor="process", max_attempts=1)
def dies(ctx: Context, how: str) -> None:
    note("start", ctx)
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "leave":
        os._exit(0)

@app.task(executor="process", timeout=2, max_attempts=1)
def hoards(ctx: Context) -> None:
    note("start", ctx)
    ctypes.PyDLL(None).sleep(600)  # a C call that keeps the GIL

@app.task(executor="process", max_attempts=1)
def closes(ctx: Context) -> None:
    note("start", ctx)
    os.closerange(3, 1 << 16)
    time.sleep(600)

@app.task()
async def closes_here(ctx: Context) -> None:
    note("start", ctx)
    os.closerange(3, 1 << 16)

@app.task()
async def shrinks_files(ctx: Context, seconds: float) -> None:
    note("start", ctx)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    await asyncio.sleep(seconds)

@app.task()
async def stops(ctx: Context, times: int) -> None:
    note("start", ctx)
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGSTOP)

@app.task(executor="process", max_attempts=1)
def forks(ctx: Context, how: str) -> str:
    note("start", ctx)
    if os.fork() == 0:
        if how == "return":
            return "the child"
        if how == "exit":
            raise SystemExit(0)
        time.sleep(600)
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return "the parent"

@app.task(executor="process", max_attempts=1)
def spoils(ctx: Context, how: str) -> int:
    note("start", ctx)
    if how == "folder":
        os.mkdir("gone")
        os.chdir("gone")
        os.rmdir(HERE + "/gone")
    elif how == "streams":
        os.close(1)
    return os.getpid()

class Nasty(Exception):
    @property
    def retry_after(self):
        raise SystemExit("not me")

@app.task(executor="process", max_attempts=1)
def raises_nastily(ctx: Context) -> None:
    raise Nasty("x")

@app.task(executor="process")
def waits(ctx: Context) -> None:
    note("start", ctx)
    time.sleep(600)
"""
)
MISTAKES = (
    NOTES
    + """
import sys, threading
from penstock.errors import UsageError

elsewhere = app.provider("elsewhere", base_url="http://127.0.0.1:9")

@app.task()
async def child(ctx: Context, n: int) -> None: ...

@app.task(executor="process")
def mistaken(ctx: Context, how: str) -> object:
    note("start", ctx)
    if how == "result":
        return b"no JSON"
    if how == "lock":
        return {"lock": threading.Lock()}
    if how == "call":
        ctx.enqueue(child.job(n=1), key=7)
    if how == "arguments":
        ctx.enqueue(child.job(m=1))
    if how == "provider":
        elsewhere.http_sync.get("/")

if not sys.argv[0].endswith("processes/task.py"):

    @app.task(executor="process")
    def absent(ctx: Context) -> None: ...
"""
)
GUARDED = """
from penstock import Context, Penstock

if __name__ == "__main__":
    app = Penstock("guarded", store="sqlite:///guarded.db")

    @app.task(executor="process")
    def never(ctx: Context) -> None: ...

    app.enqueue(never.job(), key="one")
    report = app.run(drain=True)
    print(report.errors, app.job("one").error)
"""
EMBEDDED = """
import os
from penstock import Context, Penstock

app = Penstock("here", store="sqlite:///here.db")

@app.task(executor="process")
def where(ctx: Context) -> int:
    return os.getpid()

if __name__ == "__main__":
    app.enqueue(where.job(), key="one")
    report = app.run(drain=True)
    print(report.done, app.store.job("one").result().result != str(os.getpid()))
"""


SCARCE = """
import subprocess, threading

def refuse(times, really, is_meant, error):
    left = [times]
    def act(self, *arguments, **options):
        if left[0] and is_meant(self):
            left[0] -= 1
            raise error
        return really(self, *arguments, **options)
    return act

threading.Thread.start = refuse(
    1, threading.Thread.start, lambda thread: thread.name.startswith("penstock-process"),
    RuntimeError("can't start new thread"))
subprocess.Popen.__init__ = refuse(
    1, subprocess.Popen.__init__, lambda _: True,
    BlockingIOError(11, "Resource temporarily unavailable"))
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, APP)
    yield shop
    shop.close()


def test_a_body_in_a_process_returns_raises_skips_and_enqueues(shop: Shop) -> None:
    for how in ("return", "raise", "skip", "exit", "bytes", "enqueue"):
        shop.add("works", name=how, how=how, text="x" * 500_000)

    code, err = shop.drain()

    assert code == 1
    assert "Traceback" not in err
    assert '"size":500000' in (shop.job("return-0").result or "").replace(" ", "")
    assert shop.job("skip-0").state is JobState.SKIPPED
    assert shop.job("enqueue-0").state is JobState.DONE
    assert [shop.job(f"child-{n}").result for n in range(3)] == ["0", "1", "2"]
    errors = {how: shop.job(f"{how}-0").last_error for how in ("raise", "skip", "exit", "bytes")}
    said = {how: (error.kind, error.message) for how, error in errors.items() if error}
    assert said["raise"] == ("ValueError", "it does not fit")
    assert said["skip"] == ("Skip", "not today")
    assert said["exit"] == ("SystemExit", "3")
    assert "result is not JSON" in said["bytes"][1]
    raised = errors["raise"]
    assert raised is not None
    assert "shop.py" in (raised.where or "")


def test_bodies_share_the_processes_and_run_beside_each_other(shop: Shop) -> None:
    shop.add("awaits", 6, seconds=0.1)

    code, err = shop.drain()

    assert code == 0, err
    pids = {pid for _, pid, _ in shop.bodies()}
    assert 1 <= len(pids) <= len(os.sched_getaffinity(0))
    assert {shop.job(f"awaits-{n}").result for n in range(6)} == {str(pid) for pid in pids}


@pytest.mark.parametrize(
    ("how", "cause"),
    [("segfault", "SIGSEGV"), ("kill", "SIGKILL"), ("leave", "exit code 0")],
)
def test_a_death_of_its_process_costs_a_job_one_crash_and_nobody_else_anything(
    shop: Shop, how: str, cause: str
) -> None:
    shop.add("dies", how=how)
    neighbours = shop.add("awaits", 3, seconds=0.05)

    code, err = shop.drain()

    assert code == 1, err
    job = shop.job("dies-0")
    assert (job.state, job.crashes, job.attempts) == (JobState.ERROR, 2, 0)
    assert job.last_error is not None
    assert job.last_error.category is ErrorCategory.CRASHED
    assert cause in job.last_error.message
    assert shop.starts()["dies-0"] == 2
    for key in neighbours:
        assert (shop.job(key).state, shop.starts()[key]) == (JobState.DONE, 1)


def test_a_body_that_closes_all_descriptors_costs_its_process_and_nobody_else(shop: Shop) -> None:
    shop.add("closes")
    neighbours = shop.add("awaits", 3, seconds=0.05)

    code, err = shop.drain()

    assert code == 1, err
    job = shop.job("closes-0")
    assert (job.state, job.crashes, job.attempts) == (JobState.ERROR, 2, 0)
    assert job.last_error is not None
    assert "closed its connection" in job.last_error.message
    assert not any(is_alive(pid) for key, pid, _ in shop.bodies() if key == "closes-0")
    assert all(shop.job(key).state is JobState.DONE for key in neighbours)


def test_a_worker_whose_descriptors_a_body_has_closed_ends_at_once_and_says_why(
    shop: Shop,
) -> None:
    shop.add("closes_here")
    neighbours = shop.add("child", 3, n=1)

    code, err = shop.drain()

    assert code == 1, err
    said = "A task has closed descriptors that are not its own"
    assert said in err or "SIGABRT" in err, err  # libuv may notice it first, and abort
    job = shop.job("closes_here-0")
    assert job.last_error is not None
    assert (job.state, job.last_error.category) == (JobState.ERROR, ErrorCategory.CRASHED)
    assert all(shop.job(key).state is JobState.DONE for key in neighbours)


@pytest.mark.parametrize("seconds", [0, 600])
def test_a_worker_whose_files_a_body_has_made_too_small_ends_at_once_and_says_why(
    shop: Shop, seconds: int
) -> None:
    """It would renew its lease for ever, and acknowledge nothing."""
    shop.add("shrinks_files", seconds=seconds)
    neighbours = shop.add("child", 3, n=1)

    code, err = shop.drain()

    assert code == 1, err
    assert "A task has lowered how large files of its process may be (RLIMIT_FSIZE)" in err
    job = shop.job("shrinks_files-0")
    assert job.last_error is not None
    assert (job.state, job.last_error.category) == (JobState.ERROR, ErrorCategory.CRASHED)
    assert all(shop.job(key).state is JobState.DONE for key in neighbours)


def test_a_worker_that_a_body_stops_is_continued(shop: Shop) -> None:
    shop.add("stops", times=1)

    code, err = shop.drain()

    assert code == 0, err
    assert "was stopped by a signal and is continued" in err
    assert shop.outcomes("stops-0") == ["done"]


def test_a_worker_that_a_body_stops_again_and_again_is_killed(shop: Shop) -> None:
    shop.add("stops", times=100)
    neighbours = shop.add("child", 3, n=1)

    code, err = shop.drain()

    assert code == 1, err
    assert "was stopped again (SIGSTOP?), so it is not responding and is killed" in err
    job = shop.job("stops-0")
    assert job.last_error is not None
    assert (job.state, job.last_error.category) == (JobState.ERROR, ErrorCategory.CRASHED)
    assert all(shop.job(key).state is JobState.DONE for key in neighbours)


def test_a_body_past_its_time_limit_is_killed_even_if_it_keeps_the_gil(shop: Shop) -> None:
    shop.add("hoards", 2)
    neighbours = shop.add("awaits", 2, seconds=0.05)

    code, err = shop.drain()

    assert code == 1, err
    job = shop.job("hoards-0")
    assert job.last_error is not None
    assert (job.attempts, job.last_error.category) == (1, ErrorCategory.TIMEOUT)
    pids = [pid for key, pid, _ in shop.bodies() if key.startswith("hoards")]
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)
    assert all(shop.job(key).state is JobState.DONE for key in neighbours)
    assert "does not stop" not in err


def test_a_cancelled_body_and_one_that_must_stop_are_killed(shop: Shop) -> None:
    shop.add("waits", 2)
    run = shop.run()
    wait_until(lambda: len(shop.bodies()) >= 2)
    pids = {key: pid for key, pid, _ in shop.bodies()}

    shop.store.cancel(["waits-0"]).result()

    wait_until(lambda: not is_alive(pids["waits-0"]))
    assert is_alive(pids["waits-1"])
    run.send_signal(signal.SIGTERM)
    ends_in_time(run)
    assert not is_alive(pids["waits-1"])
    job = shop.job("waits-1")
    assert (job.state, job.attempts, job.crashes) == (JobState.QUEUED, 0, 0)


@pytest.mark.parametrize("victim", ["worker", "supervisor"])
def test_task_processes_end_with_whoever_started_them(shop: Shop, victim: str) -> None:
    shop.add("waits", 2)
    run = shop.run()
    wait_until(lambda: len(shop.bodies()) >= 2)
    pids = [pid for _, pid, _ in shop.bodies()]
    (worker,) = {parent_of(parent_of(pid)) for pid in pids}  # past its guard

    os.kill(worker if victim == "worker" else run.pid, signal.SIGKILL)

    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_an_embedded_run_has_task_processes_too(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text(EMBEDDED)

    done = subprocess.run(
        [sys.executable, "here.py"],
        cwd=tmp_path,
        env=environment_of_tests(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("1 True\n", "")


def test_a_machine_without_threads_or_processes_for_a_while_costs_no_job_anything(
    tmp_path: Path,
) -> None:
    told = EMBEDDED.replace("executor=", "max_attempts=1, executor=").replace(
        'print(report.done, app.store.job("one").result().result != str(os.getpid()))',
        "job = app.store.job('one').result(); print(report.done, job.attempts, job.crashes)",
    )
    (tmp_path / "here.py").write_text(SCARCE + told)

    done = subprocess.run(
        [sys.executable, "here.py"],
        cwd=tmp_path,
        env=environment_of_tests(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.stdout == "1 0 0\n", done.stderr
    assert "Traceback" not in done.stderr
    assert "Resource temporarily unavailable" in done.stderr


def test_a_task_process_that_gets_no_guard_costs_no_job_anything(tmp_path: Path) -> None:
    told = EMBEDDED.replace("executor=", "max_attempts=1, executor=").replace(
        'print(report.done, app.store.job("one").result().result != str(os.getpid()))',
        "job = app.store.job('one').result(); print(report.done, job.attempts, job.crashes)",
    )
    (tmp_path / "here.py").write_text(told)
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "first = os.path.join(os.path.dirname(__file__), 'first')\n"
        "if 'penstock.processes.task' in sys.orig_argv and not os.path.exists(first):\n"
        "    open(first, 'w').close()\n"
        "    def fork(): raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "    os.fork = fork\n"
    )

    done = subprocess.run(
        [sys.executable, "here.py"],
        cwd=tmp_path,
        env={**environment_of_tests(), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert (tmp_path / "first").exists()
    assert done.stdout == "1 0 0\n", done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", ["return", "exit"])
def test_a_forked_child_that_comes_back_from_a_body_answers_for_nobody(
    shop: Shop, how: str
) -> None:
    shop.add("forks", 3, how=how)
    shop.add("works", 6, how="return")

    code, err = shop.drain()

    assert code == 0, err
    assert {shop.job(f"forks-{n}").result for n in range(3)} == {'"the parent"'}
    for n in range(6):
        assert f'"works-{n}"' in (shop.job(f"works-{n}").result or "")
    assert all(count == 1 for count in shop.starts().values())


def test_a_death_is_seen_although_a_forked_child_holds_the_socket(shop: Shop) -> None:
    shop.add("forks", how="die")

    code, err = shop.drain()  # within its time-out, although the children sleep for minutes

    assert code == 1, err
    job = shop.job("forks-0")
    assert (job.state, job.crashes) == (JobState.ERROR, 2)


@pytest.mark.parametrize("how", ["folder", "streams"])
def test_what_a_body_spoils_does_not_reach_the_next_one(shop: Shop, how: str) -> None:
    (shop.folder / "penstock.toml").write_text(
        (shop.folder / "penstock.toml")
        .read_text()
        .replace("[runtime]", "[runtime]\nprocess_slots = 1")
    )
    shop.add("spoils", how=how)
    shop.add("spoils", 3, name="next", how="")

    code, err = shop.drain()

    assert code == 0, err
    spoilt = shop.job("spoils-0").result
    assert spoilt not in {shop.job(f"next-{n}").result for n in range(3)}


def test_an_error_whose_own_code_raises_ends_its_job_and_not_the_process(shop: Shop) -> None:
    shop.add("raises_nastily")

    code, err = shop.drain()

    assert code == 1, err
    job = shop.job("raises_nastily-0")
    assert (job.state, job.attempts, job.crashes) == (JobState.ERROR, 1, 0)
    assert "Traceback" not in err


def test_an_app_that_only_the_task_process_cannot_load_costs_no_job_anything(shop: Shop) -> None:
    app = shop.folder / "shop.py"
    whole = app.read_text()
    app.write_text(
        whole.replace("import asyncio", "import sys\nimport asyncio", 1)
        + "\nif sys.argv[0].endswith('processes/task.py') and os.path.exists(HERE + '/half'):\n"
        + "    raise KeyError('half deployed')\n"
    )
    (shop.folder / "half").touch()
    shop.add("awaits", 2, seconds=0.01)
    run = shop.run()
    wait_until(lambda: all(shop.attempts(f"awaits-{n}") for n in range(2)))

    (shop.folder / "half").unlink()

    wait_until(lambda: set(shop.states().values()) == {JobState.DONE})
    for n in range(2):
        assert (shop.job(f"awaits-{n}").attempts, shop.job(f"awaits-{n}").crashes) == (0, 0)
    run.send_signal(signal.SIGTERM)
    ends_in_time(run)


def test_a_mistake_that_cannot_heal_is_tried_once(tmp_path: Path) -> None:
    shop = Shop(tmp_path, MISTAKES)
    how = ("result", "lock", "call", "arguments", "provider")
    for one in how:
        shop.add("mistaken", name=one, how=one)
    shop.add("absent", name="absent")
    try:
        code, err = shop.drain()

        assert (code, "Traceback" in err) == (1, False)
        for one in (*how, "absent"):
            job = shop.job(f"{one}-0")
            tries = (job.state, len(shop.attempts(f"{one}-0")))
            assert tries == (JobState.ERROR, 1), (one, job.last_error)
    finally:
        shop.close()


def test_an_app_that_its_task_process_imports_and_does_not_find_ends_the_job(
    tmp_path: Path,
) -> None:
    (tmp_path / "guarded.py").write_text(GUARDED)

    ran = subprocess.run(
        [sys.executable, "guarded.py"],
        cwd=tmp_path,
        env=environment_of_tests(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert ran.stdout.startswith("1 "), ran.stderr
    assert "its process could not load the app: The app" in ran.stdout
    assert "defines no Penstock object" in ran.stdout


def test_a_kill_that_comes_late_does_not_hit_the_next_body(shop: Shop) -> None:
    shop.add("awaits", 40, seconds=0.02)
    run = shop.run()
    wait_until(lambda: bool(shop.bodies()))
    for n in range(0, 40, 2):
        shop.store.cancel([f"awaits-{n}"]).result()

    wait_until(lambda: all(shop.job(f"awaits-{n}").state is JobState.DONE for n in range(1, 40, 2)))

    assert all(shop.job(f"awaits-{n}").crashes == 0 for n in range(40))
    run.send_signal(signal.SIGTERM)
    ends_in_time(run)
