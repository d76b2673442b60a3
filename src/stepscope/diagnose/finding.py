"""What a rule says: one cause of lost time, what fixing it would save, how that is known and what to do."""

from dataclasses import field

from stepscope.analyze.replay.changes import Change
from stepscope.analyze.replay.saving import Fix
from stepscope.dataclass import dataclass

# share of a finding's cost from which a line is what it is mostly about
MIN_MOSTLY = 0.5


@dataclass(frozen=True)
class Evidence:
    """One number that supports a finding."""

    what: str
    value: float | int | str
    unit: str = ""
    #: rank, step, kernel or operator it was seen at
    where: str = ""


@dataclass(frozen=True)
class Where:
    """A line of the user's code, or a module, with its share of what a finding is about."""

    file: str | None
    line: int | None
    module: str | None = None
    #: of the time that the fix takes out, 0 to 1; what a line calls is its own
    share: float = 1.0
    #: the line itself was not seen at work: it ran after this one, before the next that was
    after: bool = False

    @property
    def text(self) -> str:
        """Return the place as reports show it: `train.py:42`, or the module where no line is known."""
        if self.file is None:
            return f"module {self.module}"
        return f"{'after ' if self.after else ''}{self.file}:{self.line}"


@dataclass(frozen=True)
class Candidate:
    """A fault that a rule sees in the account, with the change that stands for its fix.

    The saving is found by replaying the run with `change`; `fixed_saving_ns` stands in where no replay can tell
    (another schedule of a pipeline).
    """

    id: str
    title: str
    cause: str
    remedy: str
    change: Change | None = None
    fixed_saving_ns: float | None = None
    ranks: tuple[int, ...] = ()
    #: time per step that shows the fault, whether or not it is on the critical path
    cost_ns: float | None = None
    evidence: tuple[Evidence, ...] = ()
    #: how sure the rule is of the cause itself, 0 to 1
    sureness: float = 0.9
    #: relative error of the modelled fix
    doubt: float = 0.15
    #: said even where nothing is saved (how far to trust the trace)
    always: bool = False
    #: the time per step that the fix claims to remove: it saves no more; None where only the step is a limit
    limit_ns: float | None = None
    #: which time that is, by name; the finding's own where nothing is said
    claim: str = ""
    #: the lines it is about, where the rule knows them; else those of the time that the fix takes out
    where: tuple[Where, ...] = ()
    #: options of `stepscope whatif` that give the same saving, none where no option does; None: its id's setting
    what_if: tuple[str, ...] | None = None
    #: what costs the time, in a headline; its id's words where nothing is said
    subject: str = ""
    #: a line's time is mostly the device's, whatever the id says
    on_device: bool = False

    @property
    def fix(self) -> Fix:
        """Return what to change, with what is known of it."""
        formula_ns = self.fixed_saving_ns or 0.0 if self.change is None else 0.0
        return Fix(self.change, self.doubt, formula_ns, self.limit_ns, self.claim or self.id)


@dataclass(frozen=True)
class Finding:
    """A candidate with what fixing it saves: alone, and on top of those above it."""

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
    #: as the candidate's
    what_if: tuple[str, ...] | None = None
    #: lines and modules that hold its cost, the largest share first; empty where no owner was recorded
    where: tuple[Where, ...] = ()
    subject: str = ""
    #: both as the candidate's
    on_device: bool = False

    @property
    def mostly(self) -> str | None:
        """Return where most of it is, in one phrase; None where that is not known or spread over many lines."""
        if not self.where or self.where[0].share < MIN_MOSTLY:
            return None
        first = self.where[0]
        inside = f" in {first.module}" if first.module and first.file is not None else ""
        return f"mostly {first.text}{inside} ({100 * first.share:.0f} % of it)"


# Every id that a finding can have, and the fault it stands for. Ids are part of the contract.

FINDING_IDS = {
    "data-loading": "the step waits for input",
    "launch-overhead": "the host launches kernels more slowly than the device runs them",
    "host-device-sync": "`.item()`, `.cpu()`, synchronize and the like block the host in the step",
    "host-to-device-copy": "pageable or unoverlapped copies",
    "host-stall": "the host does something else: garbage collection, logging, checkpointing, lock",
    "allocator": "cudaMalloc/cudaFree/retries inside steps",
    "precision": "matmuls off the tensor cores, or wider than needed",
    "mixed-precision-overhead": "loss scaling, casts",
    "memory-bound-attention": "unfused attention",
    "memory-bound-kernels": "other elementwise or normalisation kernels worth fusing",
    "optimizer": "unfused or oversized optimizer step",
    "recomputation": "activation checkpointing costs more than it must",
    "small-batch": "too little work per kernel",
    "communication-bound": "transfer time that no overlap could hide",
    "no-overlap": "communication that could have been hidden and is not",
    "too-many-small-collectives": "latency-bound communication: tiny buckets, per-parameter calls",
    "redundant-communication": "gradients synchronised in every micro-batch, repeated gathers",
    "straggler": "one rank is late; `ranks` names it, `cause` says host, device or data",
    "load-imbalance": "ranks have different amounts of work",
    "expert-imbalance": "uneven token routing",
    "pipeline-bubble": "too few micro-batches for the stages",
    "slow-link": "a collective far below what the link or the other groups reach",
    "memory-pressure": "near the limit, fragmented, or growing",
    "profiler-overhead": "the trace itself is distorted; says how far to trust it",
}


# Which setting of a what-if is the fix that a finding proposes?

SETTING_OF_FINDING = {
    "straggler": "straggler=off",
    "load-imbalance": "load=even",
    "no-overlap": "overlap=perfect",
    "communication-bound": "bytes=0.5x",
    "too-many-small-collectives": "bucket_mb=4",
    "data-loading": "data=instant",
    "host-device-sync": "sync=off",
    "launch-overhead": "launch=graph",
    "host-stall": "stalls=off",
    "allocator": "allocator=off",
    "host-to-device-copy": "copies=hidden",
    "recomputation": "recompute=off",
    "redundant-communication": "accumulation=no_sync",
    "optimizer": "optimizer=fused",
    "precision": "precision=16bit",
    "memory-bound-attention": "attention=fused",
    "memory-bound-kernels": "kernels=fused",
    "mixed-precision-overhead": "scaler=off",
    "expert-imbalance": "experts=even",
    "slow-link": "links=even",
}
FINDING_OF_SETTING = {setting: finding for finding, setting in SETTING_OF_FINDING.items()}


def setting_of_finding(finding: str, *, microbatches: int | None = None) -> str | None:
    """Return the setting, None where a finding has none (a batch, memory, the profiler).

    The fix of a pipeline's bubble is four times its micro-batches, so the setting needs their number.
    """
    if finding == "pipeline-bubble":
        return None if not microbatches else f"microbatches={MORE_MICROBATCHES * microbatches}"
    return SETTING_OF_FINDING.get(finding)


MORE_MICROBATCHES = 4
