"""What a finding is, and everything the product knows of each finding id.

A `Fault` is one id of the contract with all its facts: what it means, how a headline names it, what a run is bound by
where it comes first, which what-if setting is its fix, where the page shows it. A `Kind` is one way to find it: which
owners or which part of the account it matches, the change to the replay that stands for its fix, and its words. Every
list of findings elsewhere derives from these two.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from stepscope.analyze.account import Account
from stepscope.analyze.owner_places import MOSTLY, Where
from stepscope.analyze.replay.changes import Change
from stepscope.analyze.replay.removal import Fix
from stepscope.diagnose.recording import (
    Need,
    Scope,
    applies,
    made_already,
    missing,
    recording_of,
    trains_with_torch,
    uses_torch,
)
from stepscope.records import dataclass
from stepscope.units import NS_PER_MS

# What is worth saying: the few policies that all kinds share, as shares of the step.
#
# NEGLIGIBLE     less is not looked at
# WORTH_A_LINE   a fix that saves less is no finding
# NOTABLE        a cost from which a kind that could be ordinary work speaks up
# MOSTLY         a part from which something is mostly about one line, cause or rank
NEGLIGIBLE, WORTH_A_LINE, NOTABLE = 0.01, 0.02, 0.05
MORE_MICROBATCHES = 4
MICROBATCHES = "micro-batches"


@dataclass(frozen=True)
class Fault:
    """One finding id of the contract."""

    id: str
    meaning: str
    #: what costs the time, in a headline
    subject: str
    #: what a run is bound by where this comes first; None for those without a saving
    category: str | None
    #: of `stepscope whatif --set`; None where no setting is its fix
    setting: str | None = None
    plural: bool = False
    #: it costs the device's time, or that of the host which launches it or waits for it, whichever is larger
    or_host: bool = False
    #: where the page shows it: a metric of the heat map, slices of the timeline, rows of a table, a section
    shows: Mapping[str, Any] = field(default_factory=dict)


def _shows(metric: str = "", slices: tuple[str, ...] = (), rows: tuple[str, ...] = (), section: str = "") -> Any:
    places = {"metric": metric, "slices": list(slices), "rows": list(rows), "section": section}
    return {name: place for name, place in places.items() if place}


_HOST = _shows("host", rows=("idle", ""))
_SENT = ("transfer", "unmatched")
_TRANSFER = _shows("transfer", _SENT, ("collectives", ""))

# fmt: off
FAULTS = {fault.id: fault for fault in (
    Fault("data-loading", "the step waits for input", "waiting for input", "data-bound", "data=instant",
          shows=_shows("input", rows=("idle", ""))),
    Fault("launch-overhead", "the host launches kernels more slowly than the device runs them",
          "kernel-launch overhead", "host-bound", "launch=graph", shows=_HOST),
    Fault("host-device-sync", "`.item()`, `.cpu()`, synchronize and the like block the host in the step",
          "host-device synchronisation", "host-bound", "sync=off", shows=_HOST),
    Fault("host-to-device-copy", "pageable or unoverlapped copies", "copies between host and device", "copy-bound",
          "copies=hidden", plural=True, or_host=True, shows=_shows("copy", ("copy",))),
    Fault("host-stall", "the host does something else: garbage collection, logging, checkpointing, lock",
          "host stalls", "host-bound", "stalls=off", plural=True, shows=_HOST),
    Fault("recompilation", "torch.compile compiles again during training, in every step or in some", "compilation",
          "host-bound", shows=_HOST),
    Fault("host-work", "a line outside model, backward, optimizer and loader holds much of the step, and training may use "
          "what it makes", "work between the passes", "host-bound", shows=_HOST),
    Fault("allocator", "cudaMalloc/cudaFree/retries inside steps", "allocating device memory", "host-bound",
          "allocator=off", shows=_HOST),
    Fault("precision", "matmuls off the tensor cores, or wider than needed", "32-bit matrix products",
          "compute-bound", "precision=16bit", plural=True, shows=_shows(rows=("kernels", "gemm"))),
    Fault("mixed-precision-overhead", "loss scaling, casts", "loss scaling", "compute-bound", "scaler=off", or_host=True,
          shows=_shows(rows=("kernels", ""))),
    Fault("memory-bound-attention", "unfused attention", "unfused attention", "compute-bound", "attention=fused",
          shows=_shows(rows=("kernels", "attention"))),
    Fault("memory-bound-kernels", "other elementwise or normalisation kernels worth fusing",
          "unfused elementwise kernels", "compute-bound", "kernels=fused", plural=True,
          shows=_shows(rows=("kernels", "elementwise"))),
    Fault("optimizer", "unfused or oversized optimizer step", "an unfused optimizer", "compute-bound", "optimizer=fused",
          or_host=True, shows=_shows(slices=("optimizer",), rows=("kernels", "optimizer"))),
    Fault("recomputation", "activation checkpointing costs more than it must", "recomputation", "compute-bound",
          "recompute=off", or_host=True, shows=_shows("compute", rows=("operators", ""))),
    Fault("small-batch", "too little work per kernel", "small batches", None, shows=_shows(rows=("kernels", ""))),
    Fault("communication-bound", "transfer time that no overlap could hide", "exposed communication",
          "communication-bound", "bytes=0.5x", shows=_TRANSFER),
    Fault("no-overlap", "communication that could have been hidden and is not",
          "gradient communication after backward", "communication-bound", "overlap=perfect",
          shows={**_TRANSFER, "section": "strategy"}),
    Fault("too-many-small-collectives", "latency-bound communication: tiny buckets, per-parameter calls",
          "many small collectives", "communication-bound", "bucket_mb=4", plural=True,
          shows={**_TRANSFER, "section": "strategy"}),
    Fault("redundant-communication", "gradients synchronised in every micro-batch, repeated gathers",
          "repeated gradient synchronisation", "communication-bound", "accumulation=no_sync", shows=_TRANSFER),
    Fault("straggler", "one rank is late; `ranks` names it, `cause` is host, device or data", "", "straggler-bound",
          "straggler=off", shows=_shows("own")),
    Fault("load-imbalance", "ranks have different amounts of work", "load imbalance", "straggler-bound", "load=even",
          shows=_shows("compute")),
    Fault("expert-imbalance", "uneven token routing", "uneven token routing", "straggler-bound", "experts=even",
          shows=_shows("compute", section="strategy")),
    Fault("pipeline-bubble", "too few micro-batches for the stages", "too few micro-batches", "pipeline-bound",
          "microbatches={more}", plural=True, shows=_shows("wait", _SENT, section="strategy")),
    Fault("slow-link", "a collective far below what the link or the other groups reach", "a slow link",
          "communication-bound", "links=even", shows=_TRANSFER),
    Fault("memory-pressure", "near the limit, fragmented, or growing", "memory", None, shows=_shows(section="memory")),
    Fault("profiler-overhead", "the trace itself is distorted; shows how far to trust it", "the profiler", None,
          shows=_shows(section="trust")),
)}
# fmt: on
FINDING_IDS = {fault.id: fault.meaning for fault in FAULTS.values()}
FINDING_OF_SETTING = {fault.setting: fault.id for fault in FAULTS.values() if fault.setting}


@dataclass(frozen=True)
class Evidence:
    """One number that supports a finding."""

    what: str
    value: float | int | str
    unit: str = ""
    #: rank, step, kernel or operator it was seen at
    where: str = ""
    #: False for a time of other steps than the mean one, which it may exceed
    of_step: bool = True


def evidence_ms(what: str, time_ns: float, where: str = "", *, of_step: bool = True) -> Evidence:
    """Return a time as evidence."""
    return Evidence(what, round(time_ns / 1e6, 3), "ms", where, of_step)


@dataclass(frozen=True)
class Match:
    """One place in a run that a kind matches; what is not given is the kind's."""

    #: stands for the fix; None where no replay can tell
    change: Change | None = None
    #: fill the `{names}` in the kind's words
    facts: Mapping[str, object] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()
    #: time per step that shows the fault, whether or not it is on the critical path
    cost_ns: float | None = None
    evidence: tuple[Evidence, ...] = ()
    #: the lines it is about; empty: those of the time that the fix takes out, unless `where_only`
    where: tuple[Where, ...] = ()
    where_only: bool = False
    #: the time per step that the fix claims to remove: it saves no more
    limit_ns: float | None = None
    #: which time that is, by name: fixes that claim the same time cannot both remove it
    claim: str = ""
    #: what a formula says it saves per step, where no replay can tell
    formula_ns: float = 0.0
    #: the saving is an upper bound: training may need some of the work
    at_most: bool = False
    #: of an upper bound: the part that can be hidden, done once or done elsewhere; None where nothing shows such a part
    surely: Change | None = None
    #: options of `stepscope whatif` that give the same saving, none where no option does; None: the setting of its id
    what_if: tuple[str, ...] | None = None
    #: its time is mostly the device's, whatever the id says
    on_device: bool = False
    #: the next replace the kind's
    title: str = ""
    cause: str = ""
    remedy: str = ""
    subject: str = ""
    sureness: float | None = None
    doubt: float | None = None


@dataclass(frozen=True)
class Kind:
    """One kind of finding: what it matches, the words for it, and how sure it can be."""

    id: str
    match: Callable[[Account], Iterable[Match]]
    title: str
    cause: str
    #: ends with the counterfactual that the saving is of
    remedy: str
    #: the remedy in a program without PyTorch, where that differs
    elsewhere: str = ""
    scope: Scope = Scope.ANY
    #: without these its silence proves nothing
    needs: tuple[Need, ...] = ()
    #: the time per step that its fix can remove, where a match does not say so itself
    limit: Callable[[Account], float | None] | None = None
    #: its advice needs gradients and an optimizer of PyTorch: other jobs get none of it
    training_only: bool = False
    #: what is left when specific causes are fixed: its remedy would cover up any of them
    general: bool = False
    #: said even where nothing is saved
    always: bool = False
    #: why a cost that the budget shows is neither a finding nor ruled out; None where there is none
    unjudged: Callable[[Account], str | None] = lambda account: None
    #: how sure the cause itself is, 0 to 1
    sureness: float = 0.9
    #: relative error of the modelled fix
    doubt: float = 0.15
    #: what costs the time, in a headline, where that is not its id's
    subject: str = ""

    def candidates(self, account: Account) -> "list[Candidate]":
        """Return what it matches in a run, none where the run has made the fix already or the recording cannot prove it."""
        if recording_of(account).rules_out(FAULTS[self.id].category):
            return []
        if self.training_only and not trains_with_torch(account):
            return []
        if Need.STEPS in self.needs and not account.num_steps:
            return []
        if made_already(account, self.id) is not None:
            return []
        return [self._candidate(account, match) for match in self.match(account)]

    def _candidate(self, account: Account, match: Match) -> "Candidate":
        facts = {**words(account), **match.facts}
        remedy = self.elsewhere if self.elsewhere and not uses_torch(account) else match.remedy or self.remedy
        texts = (match.title or self.title, match.cause or self.cause, remedy)
        title, cause, remedy, subject = (filled(text, facts) for text in (*texts, match.subject or self.subject))
        single = len(account.run.ranks) == 1
        evidence = tuple(
            replace(
                e,
                what=filled(e.what, facts),
                unit=filled(e.unit, facts),
                where="" if single and e.where.startswith(("average rank", "median rank")) else e.where,
            )
            for e in match.evidence
        )
        if match.limit_ns is None and self.limit is not None:
            match = replace(match, limit_ns=self.limit(account), claim=self.limit.__name__)
        return Candidate(self, replace(match, evidence=evidence), title, cause, remedy, subject)

    def applies(self, account: Account) -> bool:
        """Return whether the job can have the fault at all."""
        return applies(account, self.scope) and (not self.training_only or trains_with_torch(account))

    def lacks(self, account: Account) -> list[str]:
        """Return what it would need to say that the fault is not there; nothing where it has it all."""
        if not self.applies(account):
            return []
        unshown = recording_of(account).unshown(FAULTS[self.id].category)
        lacking = (*(missing(account, need) for need in self.needs), self.unjudged(account))
        return [*(said for said in lacking if said is not None), *unshown]


def words(account: Account) -> dict[str, str]:
    """Return the words that differ where no step was recorded and what is said holds for the window."""
    if account.num_steps:
        return {"per_step": "per step", "step": "step", "every_step": "every step", "waiter": "step"}
    return {"per_step": "over the window", "step": "window", "every_step": "the job", "waiter": "job"}


def filled(text: str, facts: Mapping[str, object]) -> str:
    """Return a text with the facts in place of their names in braces; other braces stay.

    >>> filled("{place} takes {ms} ms {per_step}", {"place": "a.py:{1}", "ms": 2, "per_step": "per step"})
    'a.py:{1} takes 2 ms per step'
    """
    for name, value in facts.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


@dataclass(frozen=True)
class Candidate:
    """A match of a kind in its words, before it is known what fixing it saves."""

    kind: Kind
    match: Match
    title: str
    cause: str
    remedy: str
    subject: str = ""

    @property
    def id(self) -> str:
        return self.kind.id

    @property
    def fix(self) -> Fix:
        """Return what to change, with what is known of it."""
        match, kind = self.match, self.kind
        doubt = kind.doubt if match.doubt is None else match.doubt
        return Fix(match.change, doubt, match.formula_ns, match.limit_ns, match.claim or kind.id)


@dataclass(frozen=True)
class Finding:
    """One cause of lost time with what fixing it saves: alone, and on top of those above it."""

    id: str
    title: str
    ranks: tuple[int, ...]
    cost_ns: float | None
    #: what it adds once those above it are fixed
    saving_ns: float
    low_ns: float
    #: between which `alone_ns` lies
    high_ns: float
    #: `alone_ns` as a share of the step
    saving_pct: float
    #: what it saves as the only fix: what is shown first, and what a what-if gives
    alone_ns: float
    confidence: float
    evidence: tuple[Evidence, ...] = field(default_factory=tuple)
    cause: str = ""
    remedy: str = ""
    #: options of `stepscope whatif` that give `alone_ns`; empty where none do
    what_if: tuple[str, ...] = ()
    #: lines and modules that hold its cost, the largest share first; empty where no owner was recorded
    where: tuple[Where, ...] = ()
    subject: str = ""
    #: its time is mostly the device's, whatever the id says
    on_device: bool = False
    #: `alone_ns` is an upper bound; `low_ns` can be counted on
    at_most: bool = False
    #: what can be counted on where all times are without the wait for a core; None where they are not
    cpu_ns: float | None = None
    #: its title without the names and numbers of this run
    kind: str = ""

    @property
    def saving_alone_ms(self) -> float:
        """Return what this fix saves per step as the only one."""
        return self.alone_ns / NS_PER_MS

    @property
    def saving_after_others_ms(self) -> float:
        """Return what this fix saves per step once all findings above it are fixed."""
        return self.saving_ns / NS_PER_MS

    @property
    def saving_range_ms(self) -> tuple[float, float]:
        """Return the range in which `saving_alone_ms` is likely to be."""
        return self.low_ns / NS_PER_MS, self.high_ns / NS_PER_MS

    def __repr__(self) -> str:
        return f"<Finding {self.id}: {self.title}, saves {self.saving_alone_ms:.2f} ms per step>"

    @property
    def mostly(self) -> str | None:
        """Return where most of it is, in one phrase; None where that is not known or spread over many lines."""
        if not self.where or self.where[0].share < MOSTLY:
            return None
        first = self.where[0]
        inside = f" in module {first.module}" if first.module and first.file is not None else ""
        return f"mostly {first.text}{inside} ({100 * first.share:.0f} % of it)"
