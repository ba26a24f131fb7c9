# SPDX-License-Identifier: Apache-2.0
"""A recorded process that opens a store of an older schema, and so migrates it."""

from __future__ import annotations

import sys
from pathlib import Path

import apsw

from penstock.model.job import NewJob
from penstock.stores.sqlite.store import SqliteStore
from tests.faults.power.log import Acked, Began, Step
from tests.faults.power.recorder import Recorder, RecordingVFS, record_own_calls
from tests.faults.power.workload import snapshot


def main() -> None:
    """argv: the folder, the log, the database in the folder."""
    root, log, database = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3]
    recorder = Recorder(root, database)
    recording = RecordingVFS(recorder)
    record_own_calls(recorder)
    reader = apsw.Connection(str(root / database), flags=apsw.SQLITE_OPEN_READONLY)
    recorder.log.before = snapshot(reader)

    recorder.note(Began(0))
    store = SqliteStore.open(root / database)
    recorder.note(Acked(0))
    recorder.log.steps.append(Step("migrate", True, snapshot(reader)))
    recorder.note(Began(1))
    store.enqueue([NewJob(key="afterwards", task="fetch", payload="{}", group="g")]).result()
    recorder.note(Acked(1))
    recorder.log.steps.append(Step("enqueue", True, snapshot(reader)))

    reader.close()
    store.close()
    recording.unregister()
    recorder.log.save(log)


if __name__ == "__main__":
    main()
