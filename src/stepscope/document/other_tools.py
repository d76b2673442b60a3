"""Files of other tools in a run folder: NCCL logs in words, and the report of a folder that holds nothing else."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.contract.run_folder import SCHEMA

if TYPE_CHECKING:
    from stepscope.run.dumps import Dumps

_NO_TRACE = "no trace and no step log: nothing is known of the steps; record with stepscope record"
_MAX_ROWS = 40

Json = Mapping[str, Any]


def nccl_facts(logs: Sequence[Json]) -> list[str]:
    """Return what NCCL's logs of all ranks show, one sentence each, version and ranks first."""
    if not logs:
        return []
    sizes = [log["num_ranks"] or 0 for log in logs] + [c["num_ranks"] or 0 for log in logs for c in log["collectives"]]
    world = max(*sizes, len(logs))
    nodes = max((log["num_nodes"] or 0 for log in logs), default=0)
    version = next((log["version"] for log in logs if log["version"]), None) or "of unknown version"
    where = f" on {nodes} node{'s' * (nodes > 1)}" if nodes else ""
    facts = [f"NCCL {version}, logs of {len(logs)} of {world} rank{'s' * (world > 1)}{where}"]
    channels = [log["channels"] for log in logs if log["channels"]]
    transports: Counter[str] = Counter()
    for log in logs:
        transports.update(log["transports"])
    algorithms = dict.fromkeys(f"{c['algorithm']}/{c['protocol']}" for log in logs for c in log["choices"])
    links: dict[str, float] = {}
    for log in logs:
        links |= {name: max(bw, links.get(name, 0.0)) for name, bw in log["links"].items()}
    slowest = max((c["init_s"] or 0.0 for log in logs for c in log["communicators"]), default=0.0)
    max_bw, total_bw = (
        max((log[name] or 0.0 for log in logs), default=0.0) for name in ("max_bw_gb_per_s", "total_bw_gb_per_s")
    )
    settings = {name: value for log in logs for name, value in log["settings"].items()}
    known = {
        "algorithms": ", ".join(list(algorithms)[:8]),
        "channels": str(max(channels)) if channels else "",
        "connections": ", ".join(f"{count} {name}" for name, count in transports.most_common(6)),
        "topology": f"{max_bw:g} GB/s at most, {total_bw:g} GB/s in total" if max_bw else "",
        "links": ", ".join(f"{name} {bw:g} GB/s" for name, bw in links.items()),
        "network": ", ".join(dict.fromkeys(log["network"] for log in logs if log["network"])),
        "communicators": f"{max(len(log['communicators']) for log in logs)} per rank" if slowest else "",
        "slowest communicator": f"made in {slowest:.2f} s" if slowest else "",
        "settings": ", ".join(f"{name}={value}" for name, value in list(settings.items())[:12]),
    }
    facts += [f"{name}: {text}" for name, text in known.items() if text]
    if any(log["infiniband_missing"] for log in logs):
        facts.append("InfiniBand: none that NCCL could use")
    warned = Counter(line for log in logs for line in log["warnings"])
    return facts + [f"warning on {count} rank{'s' * (count > 1)}: {line}" for line, count in warned.most_common(8)]


def nccl_calls(logs: Sequence[Json]) -> list[dict[str, Any]]:
    """Return the logged collectives by operation and size, most calls first: algorithm, protocol, calls on a rank."""
    calls: dict[tuple[str, int | None], int] = {}
    chosen: dict[tuple[str, int | None], dict[str, None]] = {}
    for log in logs:
        for one in log["collectives"]:
            key = (one["op"], one["size_bytes"])
            calls[key] = max(calls.get(key, 0), one["count"])
        for one in (c for c in log["choices"] if c["op"] or c["size_bytes"]):
            key = (one["op"] or "?", one["size_bytes"])
            chosen.setdefault(key, {})[f"{one['algorithm']}/{one['protocol']}"] = None
            calls.setdefault(key, 0)
    ordered = sorted(calls, key=lambda key: (-calls[key], key[0], key[1] or 0))
    return [
        {"op": key[0], "size_bytes": key[1], "calls": calls[key] or None, "algorithm": ", ".join(chosen.get(key, ()))}
        for key in ordered[:_MAX_ROWS]
    ]


def _recorded_calls(dumps: "Dumps") -> list[dict[str, Any]]:
    from stepscope.document.hang import place

    most: Counter[tuple[str, str, str]] = Counter()
    for dump in dumps.by_rank.values():
        most |= Counter((call.op, call.group_desc, place(call)) for call in dump.entries)
    rows = most.most_common(_MAX_ROWS)
    return [{"op": op, "group": group, "place": where, "calls": count} for (op, group, where), count in rows]


def files_json(folder: Path) -> dict[str, Any]:
    """Return the report of a folder that holds files of other tools and neither a trace nor a step log."""
    from stepscope.analyze.hang import hang_of
    from stepscope.analyze.kernels import measured_kernels
    from stepscope.diagnose.finding import FINDING_IDS
    from stepscope.document.hang import hang_json
    from stepscope.document.report import beside_json, kernel_rows
    from stepscope.document.rows import empty_row, json_rows
    from stepscope.run.dumps import read_dumps
    from stepscope.run.formats import FLIGHT_RECORDER, MEMORY_SNAPSHOT, files_beside, measured_launches
    from stepscope.run.side_files import side_files
    from stepscope.units import finite_document

    found, beside = files_beside(folder), side_files(folder)
    measured, faults = measured_launches(folder)
    dumps = read_dumps([str(folder)]) if any(one.format.id == FLIGHT_RECORDER for one in found) else None
    hang = hang_json(hang_of(dumps.by_rank), dumps) if dumps else None
    ranks = sorted({log.rank for log in beside.nccl} | {c.rank for c in beside.collectives})
    world = [log.num_ranks for log in beside.nccl if log.num_ranks]
    notes = [_NO_TRACE, *beside.unread, *faults, *(hang["warnings"] if hang else ())]
    if any(one.format.id == MEMORY_SNAPSHOT for one in found):
        notes.append(f"memory snapshot: stepscope memory {folder}")
    ranks = sorted({*ranks, *(hang["ranks"] if hang else ())})
    step = ("profiled_ms", "unprofiled_ms", "profiler_overhead_pct", "samples_per_s", "tokens_per_s")
    run = dict.fromkeys(("device", "strategy", "torch"))
    document = {
        "schema": SCHEMA,
        "kind": "files",
        "run": {
            "name": folder.absolute().name,
            "world_size": max([*world, *([hang["world_size"]] if hang and hang["world_size"] else [])], default=None),
            "num_ranks": len(ranks),
            "num_steps": 0,
            "backend": "nccl" if beside.nccl else None,
            **run,
            "sources": [],
        },
        "files": [{"file": one.path.name, "format": one.format.title, "rank": one.rank} for one in found],
        "ranks": [],
        "step": {**dict.fromkeys(step), "overlap_efficiency": None, "budget": []},
        "efficiency": empty_row("efficiency"),
        **{name: [] for name in ("waterfall", "collectives", "operators", "idle", "critical_path", "checks")},
        **beside_json(beside),
        "kernels": json_rows("kernels", kernel_rows(measured_kernels(measured))),
        "hang": hang,
        "recorded_calls": _recorded_calls(dumps) if dumps else [],
        "stragglers": [],
        "memory": None,
        "by_strategy": {},
        "verdict": "unclear",
        "verdict_reason": hang["conclusions"][0] if hang else _NO_TRACE,
        **{name: [] for name in ("code", "modules", "examined", "not_judged", "findings", "findings_combined")},
        "not_examined": [{"rule": rule, "needs": "a trace"} for rule in FINDING_IDS],
        "incomplete": [],
        "warnings": notes,
    }
    return finite_document(document)[0]
