"""Capture cases of the zoo in this one process, without a GPU: capture_zoo.py FOLDER CASES.json.

CASES is a list of [case key, case fields, plans]; each graph is written to FOLDER/<position>.json.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

from peakcast.featurizer.capture.worker import capture_here, prepare_host


def main(folder: Path, cases: Path) -> None:
    """Capture each case. The zoo is imported after the fake device is there."""
    traced_on = prepare_host(allow_cpu=False)
    from peakcast.training.zoo import Case, build

    for position, (fields, plans) in enumerate(json.loads(cases.read_text())):
        case = Case.from_dict(fields)
        gc.collect()
        gc.freeze()  # collections during a capture need not go through all that was there before it
        spec = capture_here(lambda case=case: build(case), plans, traced_on)
        (folder / f"{position}.json").write_bytes(spec.to_json())


main(Path(sys.argv[1]), Path(sys.argv[2]))
os._exit(0)  # as the worker ends: past the teardown of the fake device's threads
