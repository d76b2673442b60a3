"""`stepscope bench`: start the ranks, show progress, write results as they grow, print them and the advice.

Whatever ends a benchmark (a dead rank, a full disk, the time limit, Ctrl-C), the complete runs are in results.json.
"""

import argparse
import math
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepscope.analyze.collective_costs import overlap_efficiency, rank_overlap
from stepscope.analyze.log_stragglers import late_ranks
from stepscope.cli.outputs import (
    check_outputs,
    is_quiet,
    make_folder,
    print_line,
    print_stderr,
    refuse_existing,
    say_with_answer,
    show,
    work_progress,
    write_json,
    write_output,
)
from stepscope.contract.operations import WORKLOAD_DEFAULTS, bus_factor
from stepscope.contract.redaction import redacted
from stepscope.contract.run_folder import SCHEMA
from stepscope.document.rows import in_ms
from stepscope.errors import InputError, UsageError
from stepscope.lab.bench.launch import LauncherPlace, LaunchResult, launched_by
from stepscope.lab.bench.results import RESULTS, results
from stepscope.lab.bench.sessions import (
    FITTING,
    MEASURING,
    NOTHING_IN_RESERVE,
    Item,
    Measured,
    Method,
    Progress,
    Sessions,
    compared_row,
    fitting_sizes,
    in_rounds,
    proc_bytes,
    run_sweep,
    run_trials,
    sweep_document,
)
from stepscope.lab.bench.strategies import NAMES, SHARDED, available, checked_names, finalists
from stepscope.lab.bench.sweeps import SWEEPS, Sweep, largest_fitting, measured_sizes, only, sweep_named
from stepscope.lab.cli.bench_arguments import MODES, RANKS, WORLD_SIZES
from stepscope.lab.report.bench import live_sheet, times_of
from stepscope.lab.report.svg import sheet_svg
from stepscope.lab.results.sweeps import (
    VariantResult,
    recommendation,
    sweep_verdict,
    verdict_document,
)
from stepscope.lab.results.times import over, scaling
from stepscope.run.load import load
from stepscope.run.side_files import step_logs
from stepscope.units import NS_PER_MS, NS_PER_US, json_text, ms

_PLOT = "results.svg"
_TRACE_STEPS = 5
_DEFAULTS = {
    "ddp": NAMES,
    "fsdp": ("pytorch_ddp", "zero1", "fsdp2_zero2", "fsdp2_zero3", *(n for n in NAMES if n.startswith("deepspeed"))),
}
# sweeps that start from bf16 on a CUDA device, as jobs there do
_HALF_PRECISION = ("attention", "checkpointing", "compile", "accumulation", "allocator", "dataloader", "offload")

Args = argparse.Namespace
Document = dict[str, Any]
# each with its name and, where it is not the default: implementation, options, workload, world_size
Variants = Sequence[dict[str, Any]]


def run(args: Args) -> int:
    """Return the exit code of a benchmark: 0, 3 where only a part could be measured, 130 after Ctrl-C."""
    args.launched = launched_by()
    if args.launched:
        _take_ranks(args, args.launched)
    if getattr(args, "profile", False):
        return _run_profile(args)
    own = {
        "buckets": _run_buckets,
        "scaling": _run_scaling,
        "straggler": _run_straggler,
        "collectives": _run_collectives,
    }
    return own.get(args.what, _run_sweep if args.what in SWEEPS else _run_ddp)(args)


def _take_ranks(args: Args, launched: LauncherPlace) -> None:
    if args.what == "collectives":
        raise UsageError(
            f"bench collectives starts its ranks itself; under {launched.launcher} use "
            "`-m stepscope.bench.collectives --out FILE`"
        )
    if args.what not in RANKS:
        raise UsageError(f"bench {args.what} measures on one rank; start it without {launched.launcher}")
    default = RANKS[args.what]
    if getattr(args, "world_size", default) not in (default, launched.world_size):
        raise UsageError(
            f"--world-size {args.world_size} differs from the {launched.world_size} ranks that {launched.launcher} "
            "started; leave it out"
        )
    args.world_size = launched.world_size
    if launched.writes:
        print_stderr(f"measuring on the {launched.world_size} ranks that {launched.launcher} started")


# What all benchmarks share


def _shared_settings(args: Args) -> dict[str, Any]:
    method = {name: getattr(args, name) for name in ("warmup_steps", "steps", "runs", "grad_accum")}
    return {"workload": _workload_settings(args), **method}


def _workload_settings(args: Args) -> dict[str, Any]:
    return {
        "name": args.workload,
        **{name: getattr(args, name) for name in WORKLOAD_DEFAULTS},
        "precision": args.precision,
        "seed": args.seed,
        "options": getattr(args, "workload_options", {}),
    }


def _results_folder(args: Args) -> Path:
    if find_spec("torch") is None:
        raise UsageError("measuring needs torch, which is not installed here; install it")
    check_outputs(args.json, getattr(args, "plot", None), args.html, force=args.force)
    folder = make_folder(args.out)
    refuse_existing(folder / RESULTS, force=args.force)
    refuse_existing(folder / _PLOT, force=True)  # what is no regular file is never overwritten
    return folder


def _method(args: Args) -> Method:
    return Method(
        backend=args.backend, runs=args.runs, warmup_steps=args.warmup_steps, steps=args.steps, threads=args.threads,
        accumulation=args.grad_accum, item_limit_s=getattr(args, "variant_limit_s", 300.0), limit_s=args.limit_s,
        world_size=getattr(args, "world_size", 1), share_devices=args.share_devices,
        memory_limit_bytes=args.memory_limit if args.what == "strategy" else None,
    )  # fmt: skip


@contextmanager
def _progress() -> Iterator[Progress]:
    """Yield what shows the runs done, their total, and the series that begins: a bar, or lines off a terminal."""

    def show(done: int, total: int, name: str) -> None:
        if update:
            update(done, total)
        elif name and not is_quiet():
            print_stderr(f"{min(done + 1, total)} of {total}: {name} ..." if total > 1 else f"{name} ...")

    with work_progress("measuring", unit="runs") as update:
        yield show


def _writes(args: Args) -> bool:
    return args.launched is None or args.launched.writes


def _exit_code(args: Args, result: LaunchResult | None) -> int:
    """Return the exit code of a rank of a launcher that writes no results."""
    message, interrupted = (result.message, result.interrupted) if result else (None, False)
    return _partial(message, interrupted=interrupted, what=f"rank {args.launched.rank}")


def _compare(
    args: Args, settings: dict[str, Any], variants: Variants, *, traces: bool = False, fresh: bool = False,
    about: Callable[[Document, Measured], Document] = lambda document, found: document,
    finish: Callable[[Document, Measured, Path], Document] = lambda document, found, folder: document,
    sessions: Sessions | None = None,
) -> int:  # fmt: skip
    """Measure variants: each its name, what `data_parallel` needs and, where `fresh`, its own number of ranks.

    `about` adds to all results, `finish` to those of everything that was to be measured.
    """
    folder, sessions, method = _results_folder(args), sessions or Sessions(args.launched), _method(args)
    by_name = {variant["name"]: variant for variant in variants}
    items = [*in_rounds(list(by_name), args.runs), *((name, None) for name in by_name if traces)]
    if _writes(args) and not is_quiet():
        ranks = "" if fresh else f" {method.world_size}"
        print_stderr(f"starting{ranks} ranks, {args.backend}, for {len(items)} runs; results so far in {folder}")

    def trial(items: Sequence[Item], number: int, **how: Any) -> LaunchResult:
        name, run = items[0]
        workload = {**settings["workload"], **by_name[name].get("workload", {})}
        chosen = [{"variant": by_name[name], "run": run} for name, run in items]
        given = {**settings, "workload": workload, "items": chosen, "checked": not fresh}
        return sessions.start(
            "data_parallel:compare", given, method=method, out=folder / f"run{run}" / name if fresh else folder,
            world_size=by_name[name].get("world_size", method.world_size), **how,
        )  # fmt: skip

    def document(found: Measured) -> Document:
        rows = [compared_row(one, runs, found, settings) for one in variants if (runs := found.runs.get(one["name"]))]
        where = {"backend": args.backend, "world_size": variants[0].get("world_size", method.world_size)}
        where |= found.environment
        return about(results(rows, command=_command_line(), environment=where, message=found.message), found)

    with _progress() as progress:
        found, result = run_trials(
            items, trial, limit_s=args.limit_s, fresh=fresh, progress=progress, keep=_keep(document, folder)
        )
    if not _writes(args):
        return _exit_code(args, result)
    return _finish(args, finish(document(found), found, folder), folder, interrupted=found.interrupted)


def _keep(document: Callable[[Measured], Document], folder: Path) -> Callable[[Measured], None]:
    """Return what writes the results so far."""

    def keep(found: Measured) -> None:
        if (so_far := document(found))["series"]:
            _write({**so_far, "complete": False, "message": "still measuring"}, folder)

    return keep


def _write(document: Document, folder: Path) -> None:
    """Write the results whole or not at all: a full disk leaves the file before."""
    write_output(str(folder / RESULTS), json_text(document, indent=1) + "\n", force=True)


def _command_line() -> str:
    return shlex.join(redacted(["stepscope", *sys.argv[1:]]))


def _answer(args: Args, document: Document, folder: Path) -> None:
    _write(document, folder)
    sheet = live_sheet(document, name=folder.resolve().name)
    if hasattr(args, "plot"):
        write_output(args.plot or str(folder / _PLOT), sheet_svg(sheet), force=args.force or not args.plot)
    show(args, document, lambda: sheet)
    if "-" not in (args.json, args.html):
        print_line(f"results in {folder}; compare with another folder: stepscope compare {folder} OTHER")


def _finish(
    args: Args, document: Document, folder: Path, *, interrupted: bool, why: str = "no run was complete"
) -> int:
    if not document["series"]:
        raise InputError(f"nothing was measured: {document['message'] or why}")
    _answer(args, document, folder)
    return _partial(document["message"], interrupted=interrupted)


def _partial(message: str | None, *, interrupted: bool, what: str = "partial result") -> int:
    if message:
        say_with_answer(f"stepscope bench: {what}: {message}")
    return 130 if interrupted else 3 if message else 0


# ddp, fsdp


def _run_ddp(args: Args) -> int:
    own = {"options": {"bucket_size_mb": args.bucket_size_mb}, "trace_steps": _TRACE_STEPS}
    return _compare(
        args, {**_shared_settings(args), **own}, [{"name": n, "implementation": n} for n in _implementations(args)],
        traces=not args.no_trace, finish=partial(_with_overlap, args),
    )  # fmt: skip


def _implementations(args: Args) -> tuple[str, ...]:
    fp16 = args.precision == "fp16"
    if args.implementations:
        names = checked_names(args.implementations)
        if fp16 and (sharded := [name for name in names if name in SHARDED]):
            raise UsageError(f"fp16 needs a loss scale that shards agree on, and {sharded[0]} has none; use bf16")
        return names
    return tuple(name for name in available(_DEFAULTS[args.what]) if not (fp16 and name in SHARDED))


def _with_overlap(args: Args, document: Document, measured: Measured, folder: Path) -> Document:
    """Return the results with communication and overlap of each series that has traces.

    The records name the traces: the folder may hold those of an earlier benchmark as well.
    """
    found = []
    with work_progress("reading traces", unit="series") as progress:
        for i, row in enumerate(document["series"]):
            traces = measured.first("trace", variant=row["name"]).get("paths", ())
            overlap = overlap_summary(*(folder / path for path in traces))
            found.append({**row, "summary": {**row["summary"], **overlap}})
            if progress:
                progress(i + 1, len(document["series"]))
    read = {**document, "series": found}
    return _recommended_strategy(read) if args.what == "fsdp" else read


def overlap_summary(*traces: Path) -> dict[str, Any]:
    """Return communication and overlap per step, from the traces of all ranks."""
    nothing = dict.fromkeys(("comm_ms_per_step", "exposed_comm_ms_per_step", "overlap_pct", "overlap_efficiency"))
    if not any(path.exists() for path in traces):
        return {**nothing, "overlap_reason": "no trace was recorded"}
    try:
        run = load(traces, cache=False)
    except InputError as error:
        return {**nothing, "overlap_reason": str(error)}
    found = [overlap for overlap in map(rank_overlap, run.ranks) if overlap is not None]
    if not found:
        return {**nothing, "overlap_reason": "the traces hold no steps"}
    comm, exposed, hidden = (
        sum(int(getattr(o, part).sum()) for o in found) for part in ("comm_ns", "exposed_ns", "together_ns")
    )
    steps = sum(len(o.periods) for o in found)
    return {
        "comm_ms_per_step": ms(comm / steps),
        "exposed_comm_ms_per_step": ms(exposed / steps),
        "overlap_pct": 100 * hidden / comm if comm else None,
        "overlap_efficiency": overlap_efficiency(found),
    }


def _recommended_strategy(document: Document) -> Document:
    rows = {row["name"]: row for row in document["series"]}
    memory = {name: row["summary"].get("peak_memory_allocated_gb") for name, row in rows.items()}
    variants = [
        VariantResult(name, "measured", step_ns=times.median_ns, peak_memory_gb=memory[name])
        for name in _DEFAULTS["fsdp"]
        if name in rows and (times := times_of(rows[name]))
    ]
    runs = {name: row["samples_ms"] for name, row in rows.items()}
    found = recommendation(variants, runs, limit_gb=document["environment"].get("device_memory_gb"))
    known = [v for v in variants if v.peak_memory_gb]
    least = min(known, key=lambda v: v.peak_memory_gb or 0.0).name if known else None
    return {**document, "recommendation": {**found, "least_memory": least}} if found else document


def _run_profile(args: Args) -> int:
    (name,) = checked_names((args.profile_implementation,))
    check_outputs(args.json, force=args.force)
    folder = _profile_folder(args, name)
    settings = {
        "implementation": name,
        "folder": str(folder.absolute()),
        **_shared_settings(args),
        "options": {"bucket_size_mb": args.bucket_size_mb},
        "profile_epochs": args.profile_epochs,
    }
    on_line = print_stderr if args.json == "-" else print_line
    with tempfile.TemporaryDirectory() as streams:
        result = Sessions(args.launched).start(
            "data_parallel:profile_job", settings, method=_method(args), out=Path(streams), on_line=on_line
        )
    if not _writes(args):
        return _exit_code(args, result)
    traces = sorted(folder.glob(f"{name}_rank_*_trace.json"))
    if not traces:
        raise InputError(f"no trace was recorded: {result.message or 'the ranks ended early'}")
    summary = folder / f"{name}_summary.txt"
    found = Measured(list(result.records[0]))
    epochs, rates = found.first("epochs"), found.first("throughput")
    document = {
        "schema": SCHEMA,
        "kind": "bench-profile",
        "command": _command_line(),
        "environment": {"backend": args.backend, "world_size": args.world_size, **found.environment},
        "complete": result.complete,
        "message": result.message,
        "implementation": name,
        "traces": [str(path) for path in traces],
        "summary": str(summary) if summary.exists() else None,
        "step_ms": rates.get("step_ms"),
        "step_source": rates.get("source"),
        "throughput_samples_per_sec": rates.get("samples_per_s"),
        "tokens_per_sec": rates.get("tokens_per_s"),
        "epochs": epochs.get("epochs", []),
    }
    write_json(args.json, document, force=args.force)
    if args.json != "-":
        unprofiled = f" --unprofiled-step-ms {rates['step_ms']:.2f}" if rates.get("unprofiled") else ""
        print_line(f"{len(traces)} trace{'s' * (len(traces) > 1)} and {summary}")
        print_line(f"next: stepscope report '{folder}/{name}_rank_*_trace.json'{unprofiled}")
    return _partial(result.message, interrupted=result.interrupted)


def _profile_folder(args: Args, name: str) -> Path:
    folder = make_folder(args.profile_output_dir)
    for old in (*folder.glob(f"{name}_rank_*_trace.json"), *folder.glob(f"{name}_summary.txt")):
        refuse_existing(old, force=True)  # what is no regular file is not ours to remove
        if not args.force:
            raise UsageError(f"{old} already exists; use --force or another --profile-output-dir")
        old.unlink()
    return folder


# buckets


def _run_buckets(args: Args) -> int:
    settings = {
        **_shared_settings(args),
        "implementation": args.implementation,
        "sizes_mb": _numbers(args.sizes_mb, "--sizes-mb", "sizes above 0 in MB, such as 1,5,25", above=0),
        "exhaustive": args.exhaustive,
        "round_steps": args.round_steps,
    }
    sessions, out = Sessions(args.launched), _results_folder(args) / "search"
    with _progress() as progress:
        progress(0, 1, "search for the bucket size")
        searched = sessions.start("data_parallel:search_bucket", settings, method=_method(args), out=out)
    best = Measured(list(searched.records[0])).first("found")
    if not best:
        raise InputError(f"nothing was measured: {searched.message}")
    search = {name: best[name] for name in ("best_mb", "tried_mb", "ratios", "same_as")}
    return _compare(
        args, settings, finalists(args.implementation, best["best_mb"]), sessions=sessions,
        about=lambda document, found: {**document, "search": search},
        finish=lambda document, found, folder: _recommended_size(document),
    )  # fmt: skip


def _recommended_size(document: Document) -> Document:
    timed = [(times, row) for row in document["series"] if (times := times_of(row))]
    if not timed:
        return document
    best, row = min(timed, key=lambda pair: pair[0].median_ns)
    default, reference = timed[0]
    found = over(row["samples_ms"], reference["samples_ms"], tests=max(len(timed) - 1, 1))
    clear = found.faster
    reason = "clearly faster than the default" if clear else "nothing is clearly faster than it"
    return {
        **document,
        "recommendation": {
            "series": row["name"] if clear else reference["name"],
            "saving_pct": 100 * (1 - found.ratio) if clear else 0.0,
            "saving_low_pct": 100 * (1 - found.high) if clear else 0.0,
            "saving_high_pct": 100 * (1 - found.low) if clear else 0.0,
            "reason": reason if best.steady and default.steady else f"{reason}, but the times are unsteady",
            "results_agree": all((r.get("agreement") or {}).get("agrees", False) for _, r in timed),
        },
    }


def _numbers(text: str | None, option: str, expected: str, *, above: float) -> list[float] | None:
    if text is None:
        return None
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or not all(above < number < math.inf for number in found):
        raise UsageError(f"{option} {text!r}: write {expected}")
    return found


# scaling


def _run_scaling(args: Args) -> int:
    checked_names((args.implementation,))
    settings = {**_shared_settings(args), "options": {"bucket_size_mb": args.bucket_size_mb}}
    variants = [
        {
            "name": f"{mode}-{size}",
            "implementation": args.implementation,
            "mode": mode,
            "world_size": size,
            "workload": {"batch_size": _batch_of(args, mode, size)},
        }
        for mode in MODES[args.mode]
        for size in _world_sizes(args)
    ]
    return _compare(
        args, settings, variants, fresh=True,
        about=lambda document, found: {**document, "scaling": scaling(document["series"])},
    )  # fmt: skip


def _world_sizes(args: Args) -> list[int]:
    sizes, launched = sorted(set(args.world_sizes or WORLD_SIZES)), args.launched
    if launched is None:
        return sizes
    if args.world_sizes and sizes != [launched.world_size]:
        raise UsageError(
            f"--world-sizes {','.join(map(str, sizes))}: {launched.launcher} started {launched.world_size} ranks; "
            "leave it out, and start other sizes with the launcher"
        )
    return [launched.world_size]


def _batch_of(args: Args, mode: str, size: int) -> int:
    if mode == "weak":
        return int(args.batch_size)
    if args.batch_size % size:
        raise UsageError(
            f"--batch-size {args.batch_size} cannot be shared by {size} ranks, as strong scaling does; use a multiple "
            f"of {size}, or --mode weak"
        )
    return int(args.batch_size // size)


# straggler


def _run_straggler(args: Args) -> int:
    checked_names((args.implementation,))
    expected = "times of 0 ms or more, such as 0,10,50"
    delays = sorted({0.0, *(_numbers(args.delays_ms, "--delays-ms", expected, above=-1e-9) or ())})
    if not 0 <= args.slow_rank < args.world_size:
        raise UsageError(f"--slow-rank {args.slow_rank} has to be below --world-size {args.world_size}")
    if args.world_size < 2:
        raise UsageError("--world-size has to be at least 2, so that one rank can wait for another")
    settings = {**_shared_settings(args), "slow_rank": args.slow_rank}
    variants = [{"name": f"{delay:g}ms", "implementation": args.implementation, "delay_ms": delay} for delay in delays]
    return _compare(args, settings, variants, about=partial(_with_costs, args))


def _with_costs(args: Args, document: Document, measured: Measured) -> Document:
    found = []
    for row in document["series"]:
        slower = over(row["samples_ms"], document["series"][0]["samples_ms"])
        logs = measured.every("log", variant=row["name"])
        runs = [late_ranks(step_logs(log["folder"])) if log["folder"] else [] for log in logs]
        straggler = {
            "planted_rank": args.slow_rank,
            "planted_ms": float(row["name"].removesuffix("ms")),
            "lost_throughput_pct": 100 * (1 - 1 / slower.ratio),
            "lost_low_pct": 100 * (1 - 1 / slower.low),
            "lost_high_pct": 100 * (1 - 1 / slower.high),
            "found": [[in_ms(late._asdict()) for late in run] for run in runs],
        }
        found.append({**row, "straggler": straggler})
    return {**document, "series": found}


# collectives


def _run_collectives(args: Args) -> int:
    from stepscope.lab.cli.calibrate import measure_points

    folder = _results_folder(args)
    points, about = measure_points(args, ops=args.op or ())
    found = []
    for point in points:
        algorithm = point.size_bytes / point.time_ns  # GB/s are bytes per nanosecond
        found.append(
            {
                "name": f"{point.op}-{point.world_size}-{point.size_bytes}",
                "config": {"op": point.op, "world_size": point.world_size, "bytes": point.size_bytes},
                "samples_ms": [[point.time_ns / NS_PER_MS]],
                "summary": {
                    "median_us": point.time_ns / NS_PER_US,
                    "algbw_gb_per_s": algorithm,
                    "busbw_gb_per_s": algorithm * bus_factor(point.op, point.world_size),
                },
            }
        )
    document = results(found, command=_command_line(), environment=about)
    _answer(args, document, folder)
    return 0


# sweeps


def _run_sweep(args: Args) -> int:
    folder, spec, sessions = _results_folder(args), _sweep_spec(args), Sessions(args.launched)
    method, place = _method(args), folder / "processes"
    if not _writes(args):
        if args.what == "batch-size":
            result = sessions.follow(FITTING, method=method, out=place, environ=NOTHING_IN_RESERVE)
            if not result.complete:
                return _exit_code(args, result)
        return _exit_code(args, sessions.follow(MEASURING, method=method, out=place))

    def document_of(so_far: Measured) -> Document:
        document = sweep_document(sweep, so_far, spec=spec, method=method, command=_command_line(), **notes)
        verdict = verdict_document(sweep_verdict(document))
        advised = verdict.pop("recommendation")
        document["sweep"]["verdict"] = verdict
        return document if advised is None else {**document, "recommendation": advised}

    with _progress() as progress:
        sweep, notes = _prepared_sweep(args, spec, method, place, sessions, progress)
        found = run_sweep(
            sweep, spec=spec, method=method, out=place, progress=progress, keep=_keep(document_of, folder),
            sessions=sessions,
        )  # fmt: skip
    why = "; ".join(f"{name}: {record['reason']}" for name, record in found.refusals.items())
    return _finish(args, document_of(found), folder, interrupted=found.interrupted, why=why)


def _prepared_sweep(
    args: Args, spec: dict[str, Any], method: Method, place: Path, sessions: Sessions, progress: Progress
) -> tuple[Sweep, dict[str, Any]]:
    if args.what != "batch-size":
        options: dict[str, Any] = {}
        if args.what == "dataloader":
            options = {"workers": args.workers}
        elif args.what == "allocator":
            options = {"settings": tuple(args.setting)}
        elif args.what in ("strategy", "accumulation"):
            options = {"world_size": args.world_size}
        sweep = sweep_named(args.what, spec, options)
        return (only(sweep, args.only.split(",")) if args.only else sweep), {}
    limit = _memory_limit(args)
    known, reasons, step_ms = fitting_sizes(
        spec, start=args.start, most=args.most, memory_limit_bytes=limit, method=method, out=place,
        progress=progress, sessions=sessions,
    )  # fmt: skip
    sizes = measured_sizes(known)
    if not sizes:
        raise UsageError(f"even a batch of 1 does not fit into memory: {next(iter(reasons.values()), 'no reason')}")
    notes = {
        "largest": largest_fitting(known),
        "did_not_fit": {str(size): reason for size, reason in sorted(reasons.items())},
        "memory_limit_bytes": limit,
    }
    return sweep_named("batch-size", spec, {"sizes": sizes, "step_ms": step_ms}), {"fitting": notes}


def _memory_limit(args: Args) -> int | None:
    if args.backend == "nccl":
        if args.memory_limit:
            raise UsageError("--memory-limit is for the CPU only; with --backend nccl the device is the limit")
        return None
    if args.memory_limit:
        return int(args.memory_limit)
    free = proc_bytes("/proc/meminfo", "MemAvailable")
    if free is None:
        raise UsageError("free memory is unknown on this system; give --memory-limit")
    return free // 2 // args.world_size


def _sweep_spec(args: Args) -> dict[str, Any]:
    spec = _workload_settings(args)
    if args.backend == "nccl" and args.what in _HALF_PRECISION and args.precision == "fp32":
        spec["precision"] = "bf16"
    options = dict(spec["options"])
    for given in args.option:
        name, _, value = given.partition("=")
        if not name or not value:
            raise UsageError(f"--option has to be NAME=VALUE, not {given!r}")
        options[name] = _value(value)
    if getattr(args, "preprocess_us", 0):
        options["preprocess_us"] = args.preprocess_us
    return {**spec, "options": options}


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
