"""The account of a run: everything that the report, in any form, shows.

Each field is computed by one module of this package; this file calls them in order and gathers the warnings. Modules
that few commands need are imported on first use. An analysis that fails unexpectedly is left out of the report with a
warning (`attempt`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from stepscope.analyze.budget import RankBudget, StepBudget, beyond_window, budgets, step_budget, unprofiled_step_ns
from stepscope.analyze.collective_costs import (
    RankAccount,
    RankView,
    RankWindow,
    collective_rows,
    late_rank,
    overlap_efficiency,
    rank_account,
    rank_overlap,
    rank_wait,
    window_of,
    with_links,
)
from stepscope.analyze.data_parallel import (
    bucket_view,
    context_parallel_view,
    experts_view,
    sharding_view,
    tensor_parallel_view,
)
from stepscope.analyze.efficiency import GivenValues, efficiency, waterfall
from stepscope.analyze.kernels import NO_KERNELS, KernelCosts, device_in_words, kernel_costs, run_chip
from stepscope.analyze.operators import NO_OPERATORS, call_costs
from stepscope.analyze.parallel_strategy import Strategy, strategy_of
from stepscope.analyze.phases import serving_of
from stepscope.analyze.replay.replay import Replay, replay_of
from stepscope.analyze.steadiness import device_states, device_warnings, log_series
from stepscope.analyze.stragglers import common_steps, find_stragglers, late_ranks, training_stragglers
from stepscope.analyze.training_step import TrainingStep, training_step
from stepscope.cost.chips import Chip, Lookup
from stepscope.errors import DEBUG, InputError, StepscopeError, UsageError, debugging
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.aligned import AlignedRun, aligned
from stepscope.run.load import Run, each_rank
from stepscope.stats.robust import MIN_SAMPLES, quantiles, slow_start
from stepscope.trace.table import EventKind, Int64s
from stepscope.units import NS_PER_MS, NS_PER_S, ns_of_ms, printable, rank_ranges

if TYPE_CHECKING:
    from stepscope.analyze.owner_costs import CodeCosts, Floats, OwnerSums, Path
    from stepscope.analyze.owner_lines import RankLines
    from stepscope.analyze.ownership import Line, OwnedWork, Ownership
    from stepscope.analyze.thread_time import SampledSteps

_T = TypeVar("_T")


def attempt(failures: list[str], name: str, analysis: Callable[[], _T], otherwise: Callable[[], _T]) -> _T:
    """Return what the analysis returns; where it fails unexpectedly, `otherwise()`, and add a line to `failures`."""
    try:
        return analysis()
    except (StepscopeError, MemoryError):
        raise
    except Exception as error:
        if debugging():
            raise
        why = printable(f"{type(error).__name__}: {error}", width=200)
        failures.append(f"{name} could not be analysed ({why}); set {DEBUG}=1 to see where, and please report it")
        return otherwise()


def _isolated(
    name: str, otherwise: Callable[[Any], Any] = lambda _: None
) -> Callable[[Callable[[Any], _T]], "cached_property[_T]"]:

    def decorate(analysis: Callable[[Any], _T]) -> "cached_property[_T]":
        def made(record: Any) -> _T:
            return attempt(record.failures, name, lambda: analysis(record), lambda: otherwise(record))

        made.__doc__ = analysis.__doc__
        return cached_property(made)

    return decorate


def _no_ranks(account: "Account") -> tuple[None, ...]:
    return (None,) * len(account.run.ranks)


@dataclass(frozen=True, eq=False, repr=False)
class Account(ArrayRecord):
    """One run and all that is known of it."""

    run: Run
    shared: AlignedRun
    #: in the order of `run.ranks`
    ranks: tuple[RankView, ...]
    #: None where no step was recorded
    step: StepBudget | None
    chip: Lookup
    efficiency: Row
    waterfall: Row
    strategy: Strategy
    #: the mean step over all logged steps, None without enough of them or where the step's time was given
    training: TrainingStep | None
    replay: Replay | None
    stragglers: tuple[Row, ...]
    notes: tuple[str, ...]
    #: one line for each analysis that failed unexpectedly; grows as analyses are made
    failures: list[str] = field(default_factory=list)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return everything a reader must know before trusting the numbers."""
        return (*self.late_warnings, *self.notes)

    @property
    def late_warnings(self) -> tuple[str, ...]:
        """Return which analyses failed, and what those made so far left out."""
        owned = [one for one in self.__dict__.get("ownership", ()) if one is not None]
        return (*dict.fromkeys(self.failures), *(line for one in owned for line in one.notes))

    @cached_property
    def ranks_read(self) -> tuple[RankWindow, ...]:
        """Return what is known of every rank that was read, in full or not, in the order of `run.ranks_read`."""
        return self.ranks if self.run.everyone is None else _rank_windows(self.shared.whole)

    @property
    def num_steps(self) -> int:
        return max((r.steps.known for r in self.run.ranks), default=0)

    @property
    def whole(self) -> str:
        """Return what shares are of: `step`, or `window` where no step was recorded."""
        return _whole(self.run)

    @property
    def device_name(self) -> str | None:
        """Return the device name of the first rank; its chip where the trace has no name."""
        return device_in_words(self.run.ranks[0], self.chip)

    @_isolated("parallel strategies", lambda _: Row(dict.fromkeys(_VIEWS)))
    def views(self) -> Row:
        """Return the view of each dimension of parallelism; None for those that the run does not have."""
        return by_strategy(self.shared, self.strategy, [v.window for v in self.ranks])

    @_isolated("serving")
    def serving(self) -> Row | None:
        return serving_of(self.run)

    @_isolated("memory")
    def memory(self) -> Row | None:
        from stepscope.analyze.memory import memory_view

        owners = [partial(self._owners_of, index) for index in range(len(self.run.ranks))]
        return memory_view(self.run, passes=self.strategy.passes, logs=self.run.logs, owners=owners)

    def _owners_of(self, index: int) -> "Ownership | None":
        return self.ownership[index]

    @_isolated("steadiness")
    def steadiness(self) -> Row | None:
        """Return how steady the steps are, None where fewer than two are known."""
        from stepscope.analyze.steadiness import steadiness

        return steadiness(self.run, logs=self.run.logs)

    @_isolated("device state", lambda _: ())
    def devices(self) -> tuple[Row, ...]:
        """Return what held each rank's device back, by the recorder's samples; empty without any."""
        return device_states(self.run.beside.telemetry, self.run.logs)

    @_isolated("energy")
    def energy(self) -> "dict[str, Any] | None":
        """Return what steps and their parts cost in joules, by the recorded counters."""
        from stepscope.analyze.energy import TracedSteps, energy_of

        step_s = self.step.step_ns / NS_PER_S if self.step else 0.0
        used = self.efficiency
        return energy_of(
            self.run.beside.telemetry,
            self.run.logs,
            self.run.description,
            tokens_per_step=step_s * (used.tokens_per_s or 0.0),
            samples_per_step=step_s * (used.samples_per_s or 0.0),
            traced=TracedSteps(self.shared, [view.budget for view in self.ranks], self.stragglers),
        )

    @_isolated("samples of threads", lambda _: ())
    def sampled(self) -> "tuple[SampledSteps, ...]":
        """Return what all threads of each rank did in the undisturbed steps, by samples; empty without any."""
        if not self.run.beside.samples:
            return ()
        from stepscope.analyze.thread_time import sampled_steps

        return sampled_steps(self.run.beside.samples, self.run.logs)

    @_isolated("source lines", _no_ranks)
    def ownership(self) -> "tuple[Ownership | None, ...]":
        """Return who owns what each rank did, in the order of `run.ranks`; None where a rank did not record it."""
        recorded = self.run.owners or self.run.captures or self.run.kernel_lines
        if not recorded and not any((rank.kinds == EventKind.PYTHON).any() for rank in self.run.ranks):
            return _no_ranks(self)
        from stepscope.analyze.match_owners import ownership_of

        return ownership_of(self.run)

    @_isolated("work of source lines", _no_ranks)
    def line_work(self) -> "tuple[RankLines | None, ...]":
        """Return what the user's lines did on each rank, in the order of `run.ranks`; None as in `ownership`."""
        from stepscope.analyze.owner_lines import rank_lines

        return tuple(rank_lines(one) if one is not None else None for one in self.ownership)

    @_isolated("costs of source lines")
    def code(self) -> "CodeCosts | None":
        """Return what lines and modules cost, None where no rank recorded owners."""
        known = [one for one in self.ownership if one is not None]
        if not known:
            return None
        from stepscope.analyze.owner_costs import code_costs  # only where owners were recorded

        return code_costs(known, [one for one in self.owner_sums if one is not None])

    @_isolated("sums by source line", _no_ranks)
    def owner_sums(self) -> "tuple[OwnerSums | None, ...]":
        """Return what each distinct owner of each rank took, in the order of `ownership`."""
        from stepscope.analyze.owner_costs import owner_sums

        step, each = self.step, zip(self.ownership, self.ranks, strict=True)
        times = None if step is None else (step.profiled_ns, step.ordinary_ns or step.profiled_ns)
        return tuple(None if one is None else owner_sums(one, view.costs.calls, times) for one, view in each)

    @_isolated("trees of source lines")
    def code_trees(self) -> Row | None:
        """Return what lines and modules took as trees, None where no rank recorded owners."""
        from stepscope.analyze.owner_costs import code_trees  # only for those that draw them

        known = [one for one in self.ownership if one is not None]
        return code_trees(known, [one for one in self.owner_sums if one is not None]) if known else None

    @_isolated("stacks of source lines", lambda _: {})
    def code_stacks(self) -> "dict[tuple[Path, str], Floats]":
        """Return what each stack of lines and its module took (`owner_costs.code_stacks`), empty without owners."""
        from stepscope.analyze.owner_costs import code_stacks  # only for exports
        from stepscope.analyze.replay.removal import to_step

        known = [i for i, sums in enumerate(self.owner_sums) if sums is not None]
        scale = to_step(self.owned_replay, self.step.step_ns) if self.step else 1.0
        critical = [work and (work[0], work[1] * scale) for work in self.critical_work]
        owned, sums = ([column[i] for i in known] for column in (self.ownership, self.owner_sums))
        return code_stacks(owned, sums, [critical[i] for i in known])  # type: ignore[arg-type]

    @_isolated("replay by source line", lambda account: account.replay)
    def owned_replay(self) -> Replay | None:
        """Return the replay that fixes are tried on: plain Python is not stretched by the profiler where it is known.

        None where the run cannot be replayed.
        """
        from stepscope.analyze.replay.removal import owned_replay

        return owned_replay(self.replay, self.ownership) if self.replay and any(self.ownership) else self.replay

    @_isolated("savings by line", lambda _: {})
    def line_savings(self) -> dict[str, float]:
        """Return what the step saves (ns) without each of the first lines of the user's, by `train.py:42`."""
        from stepscope.analyze.replay.removal import worth_replaying

        return self.savings_without(worth_replaying(self.code, self.code.lines)) if self.code else {}

    @_isolated("savings by module", lambda _: {})
    def module_savings(self) -> dict[str, float]:
        """Return what the step saves (ns) without each of the first modules, by `module:layers.3`."""
        from stepscope.analyze.replay.removal import worth_replaying

        return self.savings_without(worth_replaying(self.code, self.code.modules)) if self.code else {}

    def savings_without(self, owners: Iterable[str]) -> dict[str, float]:
        """Return what the step saves (ns) without each owner alone; those that cannot be replayed are missing."""
        if self.owned_replay is None:
            return {}
        from stepscope.analyze.replay.removal import owner_savings

        step_ns = self.step.step_ns if self.step else self.owned_replay.period_ns
        return owner_savings(self.owned_replay, owners, ownership=self.ownership, sums=self.owner_sums, step_ns=step_ns)

    @_isolated("collectives", lambda _: [])
    def collectives(self) -> list[Row]:
        rows = collective_rows(self.shared.whole, [v.window for v in self.ranks_read])
        return with_links(rows, self.run, self.chip.chip)

    @_isolated("late rank")
    def late_rank(self) -> int | None:
        """Return the rank that the others waited for the most, None where the clock uncertainty hides it."""
        return late_rank(self.shared.whole)

    @_isolated("operators", lambda _: NO_OPERATORS)
    def operators(self) -> Row:
        from stepscope.analyze.operators import operator_table

        calls = [v.costs.calls.calls for v in self.ranks]
        return operator_table(self.run.ranks, calls_of=calls, jobs=self.run.jobs)

    @_isolated("kernels", lambda _: NO_KERNELS)
    def kernels(self) -> Row:
        from stepscope.analyze.kernels import kernel_table

        costs = [v.costs for v in self.ranks]
        return kernel_table(costs, chip=self.chip.chip, measured=self.run.measured, jobs=self.run.jobs)

    @_isolated("critical path")
    def critical_path(self) -> Row | None:
        """Return the critical path, None where the run cannot be replayed."""
        from stepscope.analyze.replay.removal import critical_path

        return critical_path(self.replay, step_ns=self.step.step_ns if self.step else None) if self.replay else None

    @property
    def lines_are_sampled(self) -> bool:
        """Return whether lines are known by samples alone: no rank recorded a step with frames."""
        return not any(self.ownership)

    @_isolated("critical path by owner", _no_ranks)
    def critical_work(self) -> "Sequence[tuple[OwnedWork, Floats] | None]":
        """Return per rank the owners of its work and their time on the critical path per step, in ns."""
        if self.owned_replay is None or not any(self.ownership):
            return _no_ranks(self)
        from stepscope.analyze.replay.removal import critical_work

        return critical_work(self.owned_replay, self.ownership)

    @_isolated("critical path by line", lambda _: {})
    def critical_lines(self) -> "dict[Line, float]":
        """Return the time on the critical path per step by the user's innermost line, in ns; where no rank has owners
        the time of the training threads by their samples (`lines_are_sampled`).
        """
        if self.lines_are_sampled:
            if not self.sampled or self.step is None:
                return {}
            from stepscope.analyze.thread_time import time_by_line

            return time_by_line(self.sampled, self.step.step_ns)
        from stepscope.analyze.replay.removal import critical_lines

        return critical_lines(self.ownership, self.critical_work)

    @_isolated("overlap")
    def overlap_efficiency(self) -> float | None:
        return overlap_efficiency([rank_overlap(rank) for rank in self.run.ranks])


def account_of(
    run: Run, *, given: GivenValues | None = None, unprofiled_ms: float | None = None, chips: Sequence[Chip] = ()
) -> Account:
    """Return the account of a run; an `InputError` where no rank holds anything to account for.

    `given` and `unprofiled_ms` override the run folder; `chips` overrides the built-in hardware table.
    """
    _check_unprofiled(run, unprofiled_ms)
    windows = each_rank(run, lambda _, rank: rank_account(rank))
    if not any(windows):
        from stepscope.trace.unsupported import unsupported_content  # only for a file that is refused

        raise InputError(unsupported_content([rank.trace for rank in run.ranks]))
    failures: list[str] = []

    def tried(name: str, analysis: Callable[[], _T], otherwise: Callable[[], _T]) -> _T:
        return attempt(failures, name, analysis, otherwise)

    shared = aligned(run)
    by_rank = budgets(shared)
    training = tried("logged steps", lambda: training_step(run.logs), lambda: None) if unprofiled_ms is None else None
    split = training if training is not None and training.has_regions else None
    step = _step(run, by_rank, training, given_ns=ns_of_ms(unprofiled_ms))
    costs = each_rank(run, lambda _, rank: kernel_costs(call_costs(rank)))
    chip = run_chip(run.ranks, extra=chips)
    used = efficiency(run, costs, chip=chip, step_ns=step.step_ns if step else None, given=given)
    served = tried("serving", lambda: serving_of(run), lambda: None) if used.tokens_per_s is None else None
    used = Row(used, tokens_per_s=served.tokens_per_s) if served else used
    losses = tried(
        "waterfall",
        lambda: waterfall(by_rank, costs, step=step, efficiency=used, chip=chip.chip),
        lambda: Row(rows=None, notes=()),
    )
    strategy = strategy_of(run)
    late = tried(
        "stragglers", lambda: _late_ranks(shared, step, split), lambda: Row(stragglers=(), late_ns={}, notes=())
    )
    unprofiled_ns = step.ordinary_ns if step else None
    replay = tried(
        "replay",
        lambda: replay_of(shared, unprofiled_ns=unprofiled_ns, training=split, late_ns=late.late_ns),
        lambda: None,
    )
    more: dict[str, Callable[[], list[str]]] = {
        "sample of ranks": lambda: sample_lines(shared, replay),
        "device state": lambda: device_warnings(device_states(run.beside.telemetry, run.logs)),
        "measured kernels": lambda: _measured_lines(run),
        "debug variables": lambda: debug_warnings(run.description),
    }
    return Account(
        run=run,
        shared=shared,
        ranks=_views(shared, windows, by_rank, costs),
        step=step,
        chip=chip,
        efficiency=used,
        waterfall=losses,
        strategy=strategy,
        training=training,
        replay=replay,
        stragglers=late.stragglers,
        notes=(
            *_warnings(run, windows, shared, step, used, losses, strategy),
            *_step_warnings(run, replay, training, given=unprofiled_ms is not None),
            *late.notes,
            *(line for name, lines in more.items() for line in tried(name, lines, list[str])),
            *([chip.note] if chip.note else []),
        ),
        failures=failures,
    )


def _late_ranks(shared: AlignedRun, step: StepBudget | None, split: TrainingStep | None) -> Row:
    overhead_ns = max(0.0, step.profiled_ns - step.ordinary_ns) if step and step.ordinary_ns else 0.0
    traced = find_stragglers(shared, overhead_ns_per_step=overhead_ns)
    return training_stragglers(shared, traced, logs=shared.run.logs, training=split)


def _measured_lines(run: Run) -> list[str]:
    if not run.measured:
        return []
    from stepscope.analyze.nsight_kernels import measured_warnings  # only where kernels were measured

    return measured_warnings(run)


def _whole(run: Run) -> str:
    return "step" if any(rank.steps.known for rank in run.ranks) else "window"


def _views(
    shared: AlignedRun,
    windows: Sequence[RankAccount | None],
    by_rank: Sequence[RankBudget | None],
    costs: Sequence[KernelCosts],
) -> tuple[RankView, ...]:
    each = zip(shared.run.ranks, windows, by_rank, costs, strict=True)
    place = {rank.rank: index for index, rank in enumerate(shared.whole.run.ranks)}
    return tuple(
        RankView(rank, window, rank_wait(shared.whole, place[rank.rank], window) if window else None, budget, cost)
        for rank, window, budget, cost in each
    )


# of the 5th and 95th percentile of the logged steps, and their mean: another run of the same job is in between
_SAME_JOB = 1.05


def _check_unprofiled(run: Run, given_ms: float | None) -> None:
    """Raise a `UsageError` for a step time without the profiler that the step log contradicts."""
    series = log_series(run.logs) if given_ms is not None else None
    logged_ms = series.dur_ns[slow_start(series.dur_ns) :] / NS_PER_MS if series else np.empty(0)
    if given_ms is None or len(logged_ms) < MIN_SAMPLES:
        return
    low, high = quantiles(logged_ms, (0.05, 0.95)).tolist()
    mean = float(logged_ms.mean())
    if not low / _SAME_JOB <= given_ms <= max(high, mean) * _SAME_JOB:
        raise UsageError(
            f"--unprofiled-step-ms {given_ms:g} contradicts the step log: {len(logged_ms)} steps without the profiler "
            f"take {mean:.4g} ms ({low:.4g} to {high:.4g}); leave the option out"
        )


def _step(
    run: Run, by_rank: tuple[RankBudget | None, ...], training: TrainingStep | None, *, given_ns: int | None
) -> StepBudget | None:
    whole = _whole(run)
    if training is None or not training.has_regions:
        mean_ns = given_ns if training is None else round(training.mean_ns)
        return step_budget(by_rank, unprofiled_ns=unprofiled_step_ns(run, mean_ns), whole=whole)
    known = [(rank, b) for rank, b in zip(run.ranks, by_rank, strict=True) if b is not None]
    beyond = beyond_window(
        training, [rank for rank, _ in known], [b.periods for _, b in known], [b.on_device for _, b in known]
    )
    return step_budget(by_rank, unprofiled_ns=round(training.ordinary_ns), beyond=beyond, whole=whole)


def _step_warnings(run: Run, replay: Replay | None, training: TrainingStep | None, *, given: bool) -> list[str]:
    uneven = run.unprofiled.uneven if run.unprofiled and not given else None
    if training is not None and training.has_regions:
        uneven = training.uneven
    lines = [*(training.notes if training else ()), *([uneven] if uneven else [])]
    if replay and replay.hiccups:
        which = f"step {', '.join(map(str, replay.hiccups))}"
        kept = f"{replay.steps[0]} to {replay.steps[-1]}"
        lines.append(f"{which} took over 1.5 times the median: savings and what-ifs use steps {kept}")
    return lines


def _warnings(
    run: Run,
    windows: Sequence[RankAccount | None],
    shared: AlignedRun,
    step: StepBudget | None,
    used: Row,
    losses: Row,
    strategy: Strategy,
) -> list[str]:
    lines = [*run.warnings]
    for rank, window in zip(run.ranks, windows, strict=True):
        said = window.warnings if window else ("the trace holds neither steps nor work",)
        lines += [f"rank {rank.rank}: {line}" for line in said]
    lines += shared.clocks.warnings
    lines += step.warnings if step else ("no step was recorded: the step's budget is unknown",)
    lines += [*used.notes, *losses.notes, *strategy.notes]
    return list(dict.fromkeys(lines))


# Everything that depends on how the job is parallel: one view per dimension that it has.


def _pipeline_view(shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]) -> Row | None:
    if not strategy.has("pp"):
        return None
    from stepscope.analyze.pipeline import pipeline_view

    return pipeline_view(shared, strategy, accounts)


_VIEWS: dict[str, Callable[..., Row | None]] = {
    "buckets": bucket_view,
    "sharding": sharding_view,
    "tensor_parallel": tensor_parallel_view,
    "pipeline": _pipeline_view,
    "experts": experts_view,
    "context_parallel": context_parallel_view,
}


def by_strategy(shared: AlignedRun, strategy: Strategy, accounts: Sequence[RankAccount | None]) -> Row:
    """Return the views of every dimension; `accounts` are those of the run's ranks, in their order."""
    return Row({name: view(shared, strategy, accounts) for name, view in _VIEWS.items()})


# Which variables for debugging were set while the job ran? They slow every step by an unknown amount.

_ON = frozenset(("1", "true", "yes", "on", "y", "t"))
# name, what it does, the values that slow a job
_VARIABLES = (
    ("CUDA_LAUNCH_BLOCKING", "the host waits for every kernel before it launches the next", _ON),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "every tensor is allocated and freed by the driver", _ON),
    ("TORCH_NCCL_BLOCKING_WAIT", "the host waits in every collective", _ON),
    ("TORCH_DISTRIBUTED_DEBUG", "the ranks compare every collective by another one first", frozenset(("detail",))),
    ("NCCL_DEBUG", "NCCL writes a line for every call", frozenset(("trace",))),
)


def debug_warnings(description: Mapping[str, Any]) -> list[str]:
    """Return a line for each such variable in what `run.json` keeps of the environment."""
    environment = description.get("environment")
    if not isinstance(environment, Mapping):
        return []
    lines = []
    for name, does, values in _VARIABLES:
        value = environment.get(name)
        if isinstance(value, str) and (said := value.strip().lower()) in values:
            shown = said.upper() if values is not _ON else said
            lines.append(f"{name}={shown} was set: {does}; unset it unless you are debugging, and record again")
    return lines


# How far are the ranks in full from all ranks? Measured on what is known of all of them: their windows and waits.

_MEASURES: tuple[tuple[str, Callable[[RankWindow], float | None]], ...] = (
    ("compute", lambda v: v.window.compute.total_ns if v.window else None),
    ("exposed communication", lambda v: v.window.exposed_comm.total_ns if v.window else None),
    ("waiting", lambda v: v.wait.wait_ns if v.wait else None),
    ("idle", lambda v: v.window.idle_ns if v.window else None),
)


def _rank_windows(shared: AlignedRun) -> tuple[RankWindow, ...]:
    windows = [window_of(rank) for rank in shared.run.ranks]
    return tuple(
        RankWindow(rank, window, rank_wait(shared, index, window) if window else None)
        for index, (rank, window) in enumerate(zip(shared.run.ranks, windows, strict=True))
    )


def sample_lines(shared: AlignedRun, replay: Replay | None) -> list[str]:
    """Return by how much the means of the ranks in full differ from those of all ranks, which ranks are late beyond
    them, and which steps the replay is of.
    """
    if shared.of_all is None:
        return []
    in_full = {rank.rank for rank in shared.run.ranks}
    return [
        *_differences(shared, in_full),
        *_late_beyond(shared, in_full),
        *_replayed(shared, replay.steps if replay else None),
    ]


def _differences(shared: AlignedRun, in_full: set[int]) -> list[str]:
    every = _rank_windows(shared.whole)
    window_ns = float(np.mean([view.window.window_ns for view in every if view.window] or [0]))
    parts = []
    for name, measure in _MEASURES:
        known = [(view.rank.rank in in_full, ns) for view in every if (ns := measure(view)) is not None]
        if window_ns and any(some for some, _ in known):
            difference = np.mean([ns for some, ns in known if some]) - np.mean([ns for _, ns in known])
            parts.append(f"{name} {100 * difference / window_ns:+.2f}")
    of = f"mean of the {len(in_full):,} ranks in full less that of all {len(every):,}"
    return [f"{of}, in % of the window: {', '.join(parts)}"] if parts else []


def _late_beyond(shared: AlignedRun, in_full: set[int]) -> list[str]:
    beyond = [late.rank for late in late_ranks(shared.whole) if late.rank not in in_full]
    if not beyond:
        return []
    return [
        f"late by their own times too, but not among the ranks in full, so without a cause: rank "
        f"{rank_ranges(beyond)}; --full-ranks takes more of them in"
    ]


def _replayed(shared: AlignedRun, replayed: Int64s | None) -> list[str]:
    recorded = len(common_steps(shared.run.ranks))
    if replayed is None or len(replayed) >= recorded:
        return []
    return [f"savings and critical path are of {len(replayed):,} of the {recorded:,} recorded steps"]
