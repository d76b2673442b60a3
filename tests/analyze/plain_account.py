"""An independent, deliberately plain account of one trace: the oracle for the product's own.

Standard library only, sets of integers and sorted lists, no shared code: exact decimals into nanoseconds.
"""

import gzip
import json
from decimal import Decimal
from pathlib import Path

Spans = list[tuple[int, int]]


def plain_account(path: Path) -> dict[str, int]:
    """Return window, compute, comm, memory, exposed communication, hidden communication and idle time in ns."""
    content = path.read_bytes()
    document = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content, parse_float=Decimal)
    base = int(document.get("baseTimeNanoseconds", 0))
    events = [e for e in document["traceEvents"] if e.get("ph") == "X"]

    def spans(chosen: list[dict]) -> Spans:
        return [
            (base + int(Decimal(e["ts"]) * 1000), base + int(Decimal(e["ts"]) * 1000) + int(Decimal(e["dur"]) * 1000))
            for e in chosen
        ]

    steps = spans([e for e in events if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"])
    kernels = [e for e in events if e.get("cat") == "kernel"]
    comm = spans([e for e in kernels if "nccl" in e["name"].lower()])
    compute = spans([e for e in kernels if "nccl" not in e["name"].lower()])
    memory = spans([e for e in events if e.get("cat") in ("gpu_memcpy", "gpu_memset")])
    device = comm + compute + memory
    start = min(s for s, _ in steps or device)
    end = max(e for _, e in steps + device)
    comm, compute, memory = ([(max(s, start), min(e, end)) for s, e in one] for one in (comm, compute, memory))
    exposed = covered(comm + compute + memory) - covered(compute + memory)
    return {
        "window": end - start, "compute": covered(compute), "comm": covered(comm), "memory": covered(memory),
        "exposed": exposed, "hidden": covered(comm) + covered(compute) - covered(comm + compute),
        "idle": end - start - covered(comm + compute + memory),
    }  # fmt: skip


def covered(spans: Spans) -> int:
    """Return how much time the spans cover together, by sweeping over their edges."""
    edges = sorted([(s, 1) for s, e in spans if e > s] + [(e, -1) for s, e in spans if e > s])
    total = depth = since = 0
    for moment, change in edges:
        if depth:
            total += moment - since
        depth, since = depth + change, moment
    return total
