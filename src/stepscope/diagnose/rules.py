"""Rules over the account, one fault each. A rule states its condition, its evidence, what to change, and the change
to the replay that stands for the fix; what the fix saves is the replay's answer, never the rule's. The tables below say
what each rule needs before its silence means that all is well, and how much of the step its fix can claim.
"""

from collections.abc import Callable
from dataclasses import replace

from stepscope.analyze.account import Account
from stepscope.analyze.phases import trains
from stepscope.dataclass import dataclass
from stepscope.diagnose.communication_rules import (
    half_the_bytes,
    module_communication,
    needed_transfers_ns,
    no_overlap,
    redundant_communication,
    sent_again,
    slow_link,
    slow_transport,
    too_many_small_collectives,
    user_communication,
    wrapper_broadcasts,
)
from stepscope.diagnose.examined import Need, Scope, applies, made_already, missing
from stepscope.diagnose.finding import Candidate
from stepscope.diagnose.host_rules import (
    allocator,
    anomaly_detection,
    copying_lines,
    data_loading,
    host_device_sync,
    host_stall_and_saves,
    host_statistics,
    host_to_device_copy,
    work_beside_training,
)
from stepscope.diagnose.kernel_rules import (
    convolution_layout,
    layout_copies,
    memory_bound_attention,
    memory_bound_kernels,
    memory_pressure,
    mixed_precision_overhead,
    optimizer,
    precision,
    profiler_overhead,
    recomputation,
    small_batch,
    unused_forward,
)
from stepscope.diagnose.launch_rules import launch_overhead, parameter_loop, repeated_module
from stepscope.diagnose.rank_rules import expert_imbalance, late_lines, pipeline_bubble, stage_imbalance, straggler
from stepscope.diagnose.rule_measures import launching_ns, not_busy_ns, not_busy_or_copying_ns, not_computing_ns

# A rule: what it finds, in which jobs, what it needs, and how much its fix can remove.


@dataclass(frozen=True)
class Rule:
    """One fault, or two of a kind, seen in the account."""

    find: Callable[[Account], list[Candidate]]
    #: ids of the findings it can make
    finds: tuple[str, ...]
    scope: Scope = Scope.ANY
    #: without these its silence proves nothing
    needs: tuple[Need, ...] = ()
    #: the time per step that its fix claims to remove, where a candidate does not say so itself
    limit: Callable[[Account], float | None] | None = None
    #: its advice needs gradients and an optimizer: a serving job gets none of it
    training_only: bool = False

    def __call__(self, account: Account) -> list[Candidate]:
        if self.training_only and not trains(account.strategy.passes):
            return []
        found = [c for c in self.find(account) if made_already(account, c.id) is None]
        if self.limit is None or not found:
            return found
        most_ns, claim = self.limit(account), self.limit.__name__
        return [c if c.limit_ns is not None else replace(c, limit_ns=most_ns, claim=claim) for c in found]

    def lacks(self, account: Account) -> list[str]:
        """Return what the rule would need to say that the fault is not there; nothing where it has it all."""
        if not applies(account, self.scope) or (self.training_only and not trains(account.strategy.passes)):
            return []
        return [said for said in (missing(account, need) for need in self.needs) if said is not None]


_RANKS, _DEVICE = Scope.SEVERAL_RANKS, Scope.DEVICE
_ON_HOST = (Need.HOST,)
_LAUNCHED = (Need.DEVICE, Need.LAUNCHES)

# one cause, one change in the code
SPECIFIC: tuple[Rule, ...] = (
    Rule(straggler, ("straggler", "load-imbalance"), _RANKS, (Need.STEPS, Need.ALL_RANKS)),
    Rule(expert_imbalance, ("expert-imbalance",), _RANKS, (Need.ALL_RANKS, Need.SIZES)),
    Rule(pipeline_bubble, ("pipeline-bubble",), _RANKS, (Need.STEPS, Need.ALL_RANKS)),
    Rule(slow_link, ("slow-link",), _RANKS, (Need.ALL_RANKS, Need.SIZES)),
    Rule(data_loading, ("data-loading",), needs=_ON_HOST, limit=not_busy_ns),
    Rule(host_stall_and_saves, ("host-stall",), needs=_ON_HOST, limit=not_busy_or_copying_ns),
    Rule(anomaly_detection, ("host-stall",), needs=_ON_HOST, training_only=True),
    Rule(allocator, ("allocator",), _DEVICE, _ON_HOST, limit=not_busy_ns),
    Rule(host_to_device_copy, ("host-to-device-copy",), _DEVICE, (Need.DEVICE,)),
    Rule(host_device_sync, ("host-device-sync",), _DEVICE, _LAUNCHED, limit=not_busy_ns),
    Rule(
        mixed_precision_overhead, ("mixed-precision-overhead",), _DEVICE, (Need.DEVICE, Need.HOST), training_only=True
    ),
    Rule(redundant_communication, ("redundant-communication",), _RANKS, (Need.STEPS, Need.SIZES), training_only=True),
    Rule(
        no_overlap,
        ("no-overlap",),
        _RANKS,
        (Need.STEPS, *(Need.SIZES, Need.PASSES)),
        limit=not_computing_ns,
        training_only=True,
    ),
    Rule(
        too_many_small_collectives,
        ("too-many-small-collectives",),
        _RANKS,
        (Need.SIZES,),
        limit=not_computing_ns,
        training_only=True,
    ),
    Rule(recomputation, ("recomputation",), _DEVICE, (Need.DEVICE, Need.HOST), training_only=True),
    Rule(convolution_layout, ("memory-bound-kernels",), _DEVICE, (Need.DEVICE,)),
    Rule(memory_bound_attention, ("memory-bound-attention",), _DEVICE, (Need.DEVICE, Need.SHAPES, Need.PEAK)),
    Rule(precision, ("precision",), _DEVICE, (Need.DEVICE, Need.PEAK)),
    Rule(optimizer, ("optimizer",), _DEVICE, (Need.DEVICE, Need.HOST), training_only=True),
)

# the same faults seen in what lines and modules of the user's code did; they need owners, and add to the rules above
BY_OWNER: tuple[Rule, ...] = (
    Rule(unused_forward, ("recomputation",), training_only=True),
    Rule(host_statistics, ("host-device-sync",), _DEVICE, training_only=True),
    Rule(copying_lines, ("host-to-device-copy",), _DEVICE),
    Rule(layout_copies, ("memory-bound-kernels",), _DEVICE),
    Rule(parameter_loop, ("launch-overhead",), _DEVICE, training_only=True),
    Rule(user_communication, ("redundant-communication",), _RANKS, training_only=True),
    Rule(sent_again, ("redundant-communication",), _RANKS, training_only=True),
    Rule(wrapper_broadcasts, ("redundant-communication",), _RANKS, training_only=True),
    Rule(module_communication, ("too-many-small-collectives",), _RANKS, training_only=True),
    Rule(repeated_module, ("launch-overhead",), _DEVICE, training_only=True),
    Rule(late_lines, ("straggler",), _RANKS),
    Rule(stage_imbalance, ("load-imbalance",), _RANKS),
    # of jobs with a device too, but there most of what the host does alone is seen without lines
    Rule(work_beside_training, ("host-stall",), Scope.HOST, (Need.LINES,), training_only=True),
)

# what is left when the specific causes are fixed; their remedies would cover up any of them
GENERAL: tuple[Rule, ...] = (
    Rule(half_the_bytes, ("communication-bound",), _RANKS, (Need.SIZES,), limit=needed_transfers_ns),
    Rule(launch_overhead, ("launch-overhead",), _DEVICE, _LAUNCHED, limit=launching_ns),
    Rule(memory_bound_kernels, ("memory-bound-kernels",), _DEVICE, (Need.DEVICE,)),
    Rule(small_batch, ("small-batch",), _DEVICE, (Need.DEVICE,)),
    Rule(memory_pressure, ("memory-pressure",), _DEVICE, (Need.MEMORY,)),
    Rule(slow_transport, ("slow-link",), _RANKS),
    Rule(profiler_overhead, ("profiler-overhead",), needs=(Need.UNPROFILED,)),
)
