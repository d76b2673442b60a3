"""Flight recorder dumps as torch pickles them, built call by call."""

import pickle
from pathlib import Path
from typing import Any

FILE = "train.py"


class Recorder:
    """The dump of one rank of an NCCL job."""

    def __init__(self, rank: int, groups: dict[str, tuple[str, list[int]]]) -> None:
        self.rank = rank
        self.groups = groups
        self.entries: list[dict[str, Any]] = []

    def call(
        self, op: str, *, line: int, group: str = "0", sizes: tuple[tuple[int, ...], ...] = ((8,),),
        dtype: str = "Float", state: str = "completed", p2p: bool = False,
    ) -> "Recorder":  # fmt: skip
        """Add one call of the group."""
        seq = 1 + sum(e["process_group"][0] == group and e["is_p2p"] == p2p for e in self.entries)
        number = len(self.entries)
        inner = {"name": op, "filename": "torch/distributed/distributed_c10d.py", "line": 3000}
        outer = [{"name": name, "filename": FILE, "line": at} for name, at in (("step", line), ("<module>", 99))]
        what: dict[str, Any] = {f"{way}_sizes": [list(s) for s in sizes] for way in ("input", "output")}
        what |= {"input_dtypes": [dtype], "output_dtypes": [dtype], "state": state, "retired": state == "completed"}
        what |= {f"time_discovered_{when}_ns": None for when in ("started", "completed")}
        self.entries.append(
            {
                "frames": [inner, *outer], "record_id": number, "pg_id": int(group),
                "process_group": (group, self.groups[group][0]), "collective_seq_id": 0 if p2p else seq,
                "p2p_seq_id": seq if p2p else 0, "op_id": number + 1, "profiling_name": f"nccl:{op}",
                "time_created_ns": 1_700_000_000_000_000_000 + 10**9 * number, "timeout_ms": 600_000, "is_p2p": p2p,
                **what,
            }
        )  # fmt: skip
        return self

    def write(self, folder: Path, *, ranks_listed: bool = True) -> None:
        """Write `nccl_trace_rank_N` as torch does."""
        config = {
            name: {"name": name, "desc": desc, "ranks": str(ranks) if ranks_listed else "[]"}
            for name, (desc, ranks) in self.groups.items()
            if self.rank in ranks
        }
        dump = {"version": "2.10", "pg_config": config, "comm_lib_version": "2.28.9", "pg_status": {}}
        path = folder / f"nccl_trace_rank_{self.rank}"
        path.write_bytes(pickle.dumps({**dump, "entries": self.entries}, 2))


WORLD = {"0": ("default_pg", [0, 1, 2, 3])}


def world(ranks: int = 4) -> list[Recorder]:
    """Return recorders of a job with one group."""
    return [Recorder(rank, {"0": ("default_pg", list(range(ranks)))}) for rank in range(ranks)]
