"""Which collectives did this rank run, when, in which group, and with how many bytes?

On devices the kernel has the time and the host has the meaning:

    kernel --launch--> inside record_param_comms           one record around the launch
                  `--> inside nccl:coalesced               the records since the group's previous launch

Newer versions write the arguments of the record on the kernel too, which tells what was launched before the window.
Traces without arguments (old versions) still name the operation in the range around the launch and its tensor in
`Input Dims`. What all of them mean is in `meaning.py`. On gloo the operator (`c10d::`) has the meaning and the `gloo:`
span the time (see `gloo.py`).
"""

import numpy as np

from stepscope.contract.collectives import is_comm_annotation
from stepscope.run.collectives.meaning import distinct_meanings, said_by_ranges, said_by_records
from stepscope.run.collectives.table import Collectives, collective_table
from stepscope.run.device_work import DeviceWork, Rows, enclosing, lookup
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import EventKind, Kinds, by_string, of_kinds
from stepscope.trace.schema import NO_STRING
from stepscope.trace.table import Trace

RECORD = "record_param_comms"
_IS_RECORD = 2


def device_collectives(trace: Trace, kinds: Kinds, work: DeviceWork) -> Collectives:
    """Return the communication kernels of a rank with their meaning."""
    index = np.flatnonzero(work.kind == EventKind.COMM_KERNEL)
    kernel, launch = work.row[index], work.launch_row[index]
    launches = distinct(launch[launch >= 0])
    records, ranges = _records_and_ranges(trace, kinds)
    inside, around = enclosing(trace, records, launches), enclosing(trace, ranges, launches)
    coalesced = _coalesced(trace, records, launches, inside)
    record = lookup(launches, inside, launch)
    own = trace.arg("collective").at(kernel, missing=NO_STRING) != NO_STRING
    record = np.where((record < 0) & own, kernel, record)
    said = [
        (one,) if row >= 0 else () for row, one in zip(record.tolist(), said_by_records(trace, record), strict=True)
    ]
    for i in np.flatnonzero(among(launch, np.array(list(coalesced), np.int64))).tolist():
        rows = coalesced[int(launch[i])]
        record[i], said[i] = rows[0], tuple(said_by_records(trace, rows))
    named = said_by_ranges(trace, lookup(launches, around, launch))
    meanings, meaning = distinct_meanings(trace, zip(said, named, trace["name"][kernel].tolist(), strict=True))
    return collective_table(
        meanings,
        meaning,
        start_ns=work.start_ns[index],
        end_ns=work.end_ns[index],
        issue_ns=np.where(launch >= 0, trace["ts_ns"][launch], np.iinfo(np.int64).min),
        step=work.step[index],
        device_index=index,
        record_row=record,
    )


def _records_and_ranges(trace: Trace, kinds: Kinds) -> tuple[Rows, Rows]:
    """Return the rows of records that stand for communication (waits do not), and of the ranges around such calls."""
    host = np.flatnonzero(of_kinds(kinds, (EventKind.HOST_OP, EventKind.ANNOTATION)))
    code = by_string(trace, trace["name"][host], lambda s: _IS_RECORD if s == RECORD else is_comm_annotation(s))
    records, ranges = host[np.flatnonzero(code == _IS_RECORD)], host[np.flatnonzero(code == 1)]
    waits = by_string(trace, trace.arg("collective").at(records, missing=NO_STRING), lambda s: s == "wait")
    return records[waits == 0], ranges


def _coalesced(trace: Trace, records: Rows, launches: Rows, inside: Rows) -> dict[int, Rows]:
    """Return the records of group launches: those on the same thread since its previous launch."""
    bare = set(launches[inside < 0].tolist())
    waiting = records[~among(records, inside)]
    if not bare or not len(waiting):
        return {}
    rows = np.concatenate((waiting, launches))
    rows = rows[np.argsort(trace["ts_ns"][rows], kind="stable")]
    launching = set(launches.tolist())
    pending: dict[int, list[int]] = {}
    out = {}
    for row, thread in zip(rows.tolist(), trace["tid"][rows].tolist(), strict=True):
        mine = pending.setdefault(thread, [])
        if row not in launching:
            mine.append(row)
            continue
        if mine and row in bare:
            out[row] = np.array(mine, np.int64)
        mine.clear()
    return out
