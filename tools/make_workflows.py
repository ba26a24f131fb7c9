# SPDX-License-Identifier: Apache-2.0
"""Make the real workflow graphs that builds are tried on, from recipes of wfcommons.

Runs in an environment of its own (`make workflows`): wfcommons is large, and needed for this alone.
What is kept of a task: its name, its seconds, and the places of its parents in the list.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from wfcommons import WorkflowGenerator
from wfcommons.wfchef.recipes import EpigenomicsRecipe, MontageRecipe, SeismologyRecipe

TASKS = 1_000
SEED = 7
RECIPES = {
    "montage": MontageRecipe,
    "epigenomics": EpigenomicsRecipe,
    "seismology": SeismologyRecipe,
}


def workflow(recipe: Any) -> list[list[object]]:  # noqa: ANN401 (wfcommons is not typed)
    """The tasks of one workflow, parents first: name, seconds, parents."""
    random.seed(SEED)
    np.random.seed(SEED)
    made = WorkflowGenerator(recipe.from_num_tasks(TASKS)).build_workflow()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workflow.json"
        made.write_json(path)
        document = json.loads(path.read_text())["workflow"]
    seconds = {task["id"]: task["runtimeInSeconds"] for task in document["execution"]["tasks"]}
    waiting = {task["id"]: set(task["parents"]) for task in document["specification"]["tasks"]}
    placed: dict[str, int] = {}
    tasks: list[list[object]] = []
    while waiting:
        ready = sorted(name for name, parents in waiting.items() if parents <= placed.keys())
        if not ready:
            raise SystemExit("The workflow has a cycle.")
        for name in ready:
            parents = sorted(placed[parent] for parent in waiting.pop(name))
            placed[name] = len(tasks)
            tasks.append([name, round(seconds[name], 3), parents])
    return tasks


def main() -> None:
    """Write one file for each recipe into the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, recipe in RECIPES.items():
        lines = ",\n".join(json.dumps(task, separators=(",", ":")) for task in workflow(recipe))
        (folder / f"{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
