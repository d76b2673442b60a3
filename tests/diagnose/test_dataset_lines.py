"""Where the loader's workers were sampled, the finding of a slow loader has the dataset's lines."""

import gzip
import json
from pathlib import Path

from tests.analyze.owners.planted import write_owners
from tests.analyze.owners.simulated import owned_run
from tests.analyze.simulate import SYNC, Op, kernel

from stepscope.analyze.account import account_of
from stepscope.contract.run_folder import owners_file
from stepscope.diagnose.findings import diagnose
from stepscope.run.load import load

SLOW_LOADER = [Op("data", 3000), *[kernel(300) for _ in range(5)], SYNC]


def said(folder: Path) -> list[tuple[str, object]]:
    found = diagnose(account_of(load(folder, cache=False))).findings
    (one,) = [f for f in found if f.id == "data-loading"]
    return [(e.what, e.value) for e in one.evidence if e.what.startswith("in ")]


def test_lines_of_the_dataset_are_evidence_where_workers_were_sampled(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    owned_run(folder, SLOW_LOADER, SLOW_LOADER)
    assert said(folder) == []
    for rank, lines in enumerate(([["data.py:12", 0.9], ["data.py:15", 0.05]], [["data.py:12", 0.5], ["x.py:3", 0.5]])):
        document = json.loads(gzip.decompress((folder / owners_file(rank)).read_bytes()))
        write_owners(folder, rank, {**document, "loader": lines})
    assert said(folder) == [("in data.py:12", 70.0), ("in x.py:3", 25.0)]
