"""The `details` of the report's JSON, which pictures are drawn from: steps of the run, traffic between ranks, code.

Times in milliseconds, per step where a name does not say otherwise. Each key is null where nothing of it is known.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account, attempt
from stepscope.analyze.collective_costs import rank_matrix
from stepscope.analyze.kernels import FIRST_BIN_NS, NUM_BINS, QUEUE_EDGES, distributions
from stepscope.analyze.owner_lines import is_pass
from stepscope.analyze.pipeline import ideal_schedule, pipeline_actions
from stepscope.analyze.replay.graph import CircularWaits
from stepscope.analyze.replay.removal import Fix, critical_path
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.steadiness import run_steps
from stepscope.diagnose.findings import Diagnosis
from stepscope.diagnose.measures import place_of, ranks_with
from stepscope.records import Row
from stepscope.units import NS_PER_MS, NS_PER_US, ms

# a longer run is thinned to the longest step of each of this many equal stretches
_MAX_STEPS = 600
# ranks with a line each in the picture of all steps
_MAX_LINES = 6
# more ranks are joined into blocks
_MAX_BLOCKS = 64
_MAX_ACTIONS = 3_000
_MAX_FIXES = 8
_TREE_TIMES = ("host", "device", "comm", "exposed", "backward_host", "backward_device")


def details_json(account: Account, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the object; what fails unexpectedly is null, with a line in the account's failures."""
    parts: dict[str, Callable[[], Any]] = {
        "run_steps": lambda: _run_steps(account),
        "kernels": lambda: _kernel_durations(account),
        "rank_matrix": lambda: _rank_matrix(account),
        "pipeline_step": lambda: _pipeline_step(account),
        "what_if": lambda: _what_if(account, diagnosis),
        "code_trees": lambda: _code_trees(account),
        "training_lines": lambda: _training_lines(account),
        "chip": lambda: _chip(account),
    }
    return {name: attempt(account.failures, name.replace("_", " "), make, lambda: None) for name, make in parts.items()}


def _run_steps(account: Account) -> dict[str, Any] | None:
    found = run_steps(account.run, account.run.logs)
    if found is None:
        return None
    times = found.dur_ns / NS_PER_MS
    low, middle, high = np.fmin.reduce(times, axis=0), _medians(times), np.fmax.reduce(times, axis=0)
    num = len(found.step)
    stretches = np.array_split(np.arange(num), min(num, _MAX_STEPS))
    kept = [int(s[np.argmax(np.nan_to_num(high[s]))]) for s in stretches if len(s)]
    longest = (
        sorted(np.argsort(-np.nan_to_num(_medians(times.T)), kind="stable")[:_MAX_LINES].tolist())
        if len(found.ranks) > 1
        else []
    )
    spikes = account.steadiness.spikes if account.steadiness else ()
    slowest = np.argmax(np.nan_to_num(times[:, kept]), axis=0)
    return {
        "source": found.source,
        "num_steps": num,
        "num_ranks": len(found.ranks),
        "step": found.step[kept].tolist(),
        **{f"{name}_ms": _rounded(values[kept]) for name, values in (("min", low), ("median", middle), ("max", high))},
        "slowest_rank": [found.ranks[r] for r in slowest.tolist()],
        "profiled": found.profiled[kept].tolist(),
        "marks": {str(step): mark for step, mark in found.marks.items()},
        "outliers": [s.step for s in spikes],
        "ranks": [{"rank": found.ranks[r], "ms": _rounded(times[r, kept])} for r in longest],
    }


def _kernel_durations(account: Account) -> dict[str, Any] | None:
    found = distributions([view.costs for view in account.ranks])
    if found is None:
        return None
    families = zip(found.families, found.count, found.time_ns / NS_PER_MS, strict=True)
    return {
        "from_us": [0.0, *(FIRST_BIN_NS * 2**k / NS_PER_US for k in range(NUM_BINS - 1))],
        "families": [{"family": f, "count": _rounded(c), "ms": _rounded(t)} for f, c, t in families],
        "queue_at_least": list(QUEUE_EDGES),
        "queue_pct": None if found.queue_median is None else _rounded(100 * found.queue_share),
        "queue_median": found.queue_median,
    }


def _rank_matrix(account: Account) -> dict[str, Any] | None:
    found = rank_matrix(account.shared)
    if found is None:
        return None
    blocks = np.array_split(np.arange(len(found.ranks)), min(len(found.ranks), _MAX_BLOCKS))
    starts = [int(block[0]) for block in blocks]

    def joined(values: npt.NDArray[np.float64]) -> list[list[float]]:
        summed = np.add.reduceat(np.add.reduceat(values, starts, axis=0), starts, axis=1)
        return [_rounded(row) for row in summed]

    return {
        "blocks": [[found.ranks[int(block[0])], found.ranks[int(block[-1])]] for block in blocks],
        "waited_ms": joined(found.waited_ns / NS_PER_MS),
        "message_bytes": joined(found.message_bytes),
        "ring_bytes": joined(found.ring_bytes),
    }


def _pipeline_step(account: Account) -> list[dict[str, Any]] | None:
    found = pipeline_actions(account.shared, account.strategy, [view.window for view in account.ranks])
    if found is None or sum(map(len, found[1])) > _MAX_ACTIONS:
        return None
    index, actions = found
    clocks, ranks = account.shared.clocks, account.run.ranks
    if not clocks.known[index].all():
        return None
    first = [(i, np.array([mine[0].start_ns])) for i, mine in zip(index, actions, strict=True)]
    shift = [int(clocks.shared([i], start)[0] - start[0]) for i, start in first]
    origin = min(mine[0].start_ns + s for mine, s in zip(actions, shift, strict=True))
    ideal, durations = ideal_schedule(actions, equal=False)
    out = []
    for stage, (i, mine, by) in enumerate(zip(index, actions, shift, strict=True)):
        measured = [[a.kind, a.microbatch, ms(a.start_ns + by - origin), ms(a.end_ns + by - origin)] for a in mine]
        best = None
        if ideal is not None:
            timed = zip(mine, ideal.starts[stage], durations[stage], strict=True)
            best = [[a.kind, a.microbatch, ms(start), ms(start + took)] for a, start, took in timed]
        out.append({"stage": stage, "rank": ranks[i].rank, "measured": measured, "ideal": best})
    return out


def _what_if(account: Account, diagnosis: Diagnosis) -> dict[str, Any] | None:
    """Return the step as it is and with each of the first fixes; None where nothing can be replayed or fixed."""
    replay, step_ns = account.owned_replay, account.step.step_ns if account.step else 0.0
    saves = [(i, f.alone_ns, diagnosis.fixes[i]) for i, f in enumerate(diagnosis.findings) if f.alone_ns > 0]
    saves = [one for one in saves if one[2].change is not None or one[2].formula_ns > 0][:_MAX_FIXES]
    if replay is None or not step_ns or not saves:
        return None
    states = [_state(replay, (), 0.0, step_ns)]
    states += [_state(_changed(replay, fix), (i,), alone_ns, step_ns) for i, alone_ns, fix in saves]
    return {"step_ms": ms(step_ns), "findings": [i for i, _, _ in saves], "states": states}


def _state(replay: Replay, fixes: tuple[int, ...], saving_ns: float, step_ns: float) -> dict[str, Any]:
    """Return what the step with some fixes consists of along its critical path."""
    found = critical_path(replay)
    scale = (step_ns - saving_ns) / found.ns_per_step if found.ns_per_step else 0.0
    path = {what: ms(ns * scale) for what, ns in sorted(found.what_ns.items(), key=lambda one: -one[1])}
    return {"fixes": list(fixes), "saving_ms": ms(saving_ns), "path": path}


def _changed(replay: Replay, fix: Fix) -> Replay:
    try:
        return replay if fix.change is None else fix.change(replay)
    except CircularWaits:
        return replay


def _code_trees(account: Account) -> dict[str, Any] | None:
    trees = account.code_trees
    return None if trees is None else {"lines": _node(trees.lines), "modules": _node(trees.modules)}


def _training_lines(account: Account) -> list[str] | None:
    """Return the lines that training cannot do without: they call the model, backward, the optimizer or the loader."""
    if account.code is None or account.lines_are_sampled:
        return None
    lines = dict.fromkeys((one.file, one.line) for one in account.code.lines)
    return [
        place_of(line)
        for line in lines
        if any(is_pass(known, known.lines[line]) for known in ranks_with(account, line))
    ]


def _chip(account: Account) -> dict[str, Any] | None:
    chip = account.chip.chip
    if chip is None:
        return None
    return {"name": chip.name, "tflops": dict(chip.tflops), "memory_gb_per_s": chip.memory_gb_per_s}


def _node(node: Row) -> dict[str, Any]:
    times = {name: round(getattr(node, f"{name}_ns") / NS_PER_MS, 4) for name in _TREE_TIMES}
    return {
        "name": node.name,
        "label": node.label,
        **{name: value for name, value in times.items() if value},
        **({"children": [_node(child) for child in node.children]} if node.children else {}),
    }


def _medians(times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the median of each column, NaN ignored; `np.nanmedian` would import masked arrays."""
    ordered, known = np.sort(times, axis=0), np.maximum((~np.isnan(times)).sum(axis=0), 1)
    each = np.arange(times.shape[1])
    return (ordered[(known - 1) // 2, each] + ordered[known // 2, each]) / 2


def _rounded(values: Any) -> list[Any]:
    return [None if v != v else round(v, 4) for v in np.asarray(values, float).tolist()]
