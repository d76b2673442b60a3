"""Which trace stands for each rank, where PyTorch's profiler and Nsight Systems recorded the same job?

PyTorch's, where a rank has both: the other is compared with it and set aside. A rank that only Nsight Systems recorded
joins the others where it is known which it is.
"""

from collections import Counter
from pathlib import Path

from stepscope.run.imports.second_recording import is_nsight, second_recording
from stepscope.run.sources import assign_ranks, rank_in_header, stated_name
from stepscope.trace.table import Trace


def one_recording_each(traces: list[Trace], root: Path | None) -> tuple[list[Trace], list[tuple[int, str]], list[str]]:
    """Return one trace for each rank with how the rank is known, and lines on recordings that were set aside."""
    of_file = Counter(t.path for t in traces)
    # The name of a file that holds several ranks is of none of them.
    named = [
        (stated_name(Path(t.path), root=root) if of_file[t.path] == 1 else "", rank_in_header(t.header)) for t in traces
    ]
    by_kineto = [i for i, t in enumerate(traces) if not is_nsight(t)]
    if not by_kineto or len(by_kineto) == len(traces):
        return traces, assign_ranks(named), []
    first = assign_ranks([named[i] for i in by_kineto])
    kineto = {rank: traces[i] for i, (rank, _) in zip(by_kineto, first, strict=True)}
    kept, known, lines = [traces[i] for i in by_kineto], list(first), []
    nsight = [i for i in range(len(traces)) if is_nsight(traces[i])]
    for i, (rank, source) in zip(nsight, assign_ranks([named[i] for i in nsight]), strict=True):
        if source == "order" and len(nsight) != len(by_kineto):
            lines.append(f"{Path(traces[i].path).name}: which rank it is of is not known, so it is not used")
        elif rank in kineto:
            lines.append(second_recording(kineto[rank], traces[i], rank=rank))
        else:
            kept.append(traces[i])
            known.append((rank, source))
    return kept, known, lines
