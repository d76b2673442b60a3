"""One folder for all ranks, agreed in the background: rank 0 chooses it, the others are told over the side channel.

rank 0   helper claims a folder --> "folder" in the store
others   wait for "folder"; without a store, claim it by an id that all ranks of the job can work out alone
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from stepscope.record.config import RecordConfig
from stepscope.record.helper.clock_probe import boot_id
from stepscope.record.helper.side_channel import SideChannel
from stepscope.record.rank import Place

_KEY = "folder"
_STALE_S = 60.0  # an answer so much older than this process is from before an elastic restart

Claim = Callable[[str], dict[str, Any]]
"""Asks the helper for a folder by run id; returns its reply, `{"folder"}` or `{"error"}`."""


def agree_on_folder(
    config: RecordConfig, place: Place, *, channel: SideChannel | None, claim: Claim, started_ns: int, number: int = 0
) -> dict[str, Any]:
    """Return `{"folder", "run_id", "boot_id"}` of this run (boot id: rank 0's), or `{"error"}`.

    `number` counts the runs of this process: a second one must not take the first one's answer.
    """
    key = f"{_KEY}{number}" if number else _KEY
    if place.world_size == 1:
        return _claim_folder(claim, str(uuid.uuid4()))
    if channel is None:
        return _claim_folder(claim, id_without_store(config, os.environ))
    if place.rank == 0:
        answer = _claim_folder(claim, str(uuid.uuid4()))
        channel.put(key, json.dumps({**answer, "started_ns": started_ns}))
        return answer
    told = _wait_for_answer(channel, key, config.other_ranks_wait_s, started_ns=started_ns)
    return told if told is not None else _claim_folder(claim, id_without_store(config, os.environ))


def id_without_store(config: RecordConfig, environ: Mapping[str, str]) -> str:
    """Return an id that is the same on all ranks of this job and another one in the next job."""
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if "SLURM_JOB_ID" in environ:
        return f"slurm-{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '0')}-{restart}"
    return f"{config.run_id or boot_id()}-{os.getppid()}-{restart}"


def _claim_folder(claim: Claim, run_id: str) -> dict[str, Any]:
    return {"run_id": run_id, "boot_id": boot_id(), **claim(run_id)}


def _wait_for_answer(channel: SideChannel, key: str, timeout_s: float, *, started_ns: int) -> dict[str, Any] | None:
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        text = channel.wait_for(key, left_s)
        if text is None:
            return None
        answer: dict[str, Any] = json.loads(text)
        if answer.pop("started_ns") > started_ns - _STALE_S * 1e9:
            return answer
        time.sleep(1.0)
    return None
