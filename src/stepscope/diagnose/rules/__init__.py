"""Rules over the account, one fault each. A rule states its condition, its evidence, what to change, and the change
to the replay that stands for the fix; what the fix saves is the replay's answer, never the rule's. The tables below say
what each rule needs before its silence means that all is well, and how much of the step its fix can claim.
"""

from stepscope.diagnose.rule import Rule
from stepscope.diagnose.rules.allocator import allocator
from stepscope.diagnose.rules.anomaly_detection import anomaly_detection
from stepscope.diagnose.rules.convolution_layout import convolution_layout
from stepscope.diagnose.rules.copying_lines import copying_lines
from stepscope.diagnose.rules.data_loading import data_loading
from stepscope.diagnose.rules.expert_imbalance import expert_imbalance
from stepscope.diagnose.rules.half_the_bytes import half_the_bytes, needed_transfers_ns
from stepscope.diagnose.rules.host_device_sync import host_device_sync
from stepscope.diagnose.rules.host_statistics import host_statistics
from stepscope.diagnose.rules.host_to_device_copy import host_to_device_copy
from stepscope.diagnose.rules.late_lines import late_lines
from stepscope.diagnose.rules.launch_overhead import launch_overhead
from stepscope.diagnose.rules.layout_copies import layout_copies
from stepscope.diagnose.rules.limits import launching_ns, not_busy_ns, not_busy_or_copying_ns, not_computing_ns
from stepscope.diagnose.rules.memory_bound_attention import memory_bound_attention
from stepscope.diagnose.rules.memory_bound_kernels import memory_bound_kernels
from stepscope.diagnose.rules.memory_pressure import memory_pressure
from stepscope.diagnose.rules.mixed_precision_overhead import mixed_precision_overhead
from stepscope.diagnose.rules.module_communication import module_communication
from stepscope.diagnose.rules.no_overlap import no_overlap
from stepscope.diagnose.rules.optimizer import optimizer
from stepscope.diagnose.rules.parameter_loop import parameter_loop
from stepscope.diagnose.rules.pipeline_bubble import pipeline_bubble
from stepscope.diagnose.rules.precision import precision
from stepscope.diagnose.rules.profiler_overhead import profiler_overhead
from stepscope.diagnose.rules.recomputation import recomputation
from stepscope.diagnose.rules.redundant_communication import redundant_communication
from stepscope.diagnose.rules.repeated_module import repeated_module
from stepscope.diagnose.rules.sent_again import sent_again
from stepscope.diagnose.rules.slow_link import slow_link
from stepscope.diagnose.rules.slow_transport import slow_transport
from stepscope.diagnose.rules.small_batch import small_batch
from stepscope.diagnose.rules.stage_imbalance import stage_imbalance
from stepscope.diagnose.rules.state_saves import host_stall_and_saves
from stepscope.diagnose.rules.straggler import straggler
from stepscope.diagnose.rules.too_many_small_collectives import too_many_small_collectives
from stepscope.diagnose.rules.unused_forward import unused_forward
from stepscope.diagnose.rules.user_communication import user_communication
from stepscope.diagnose.rules.work_beside_training import work_beside_training
from stepscope.diagnose.rules.wrapper_broadcasts import wrapper_broadcasts
from stepscope.diagnose.scope.needs import Need, Scope

_RANKS, _DEVICE = Scope.SEVERAL_RANKS, Scope.DEVICE
_ON_HOST = (Need.HOST,)
_LAUNCHED = (Need.DEVICE, Need.LAUNCHES)
_GRADIENTS = (Need.SIZES, Need.PASSES)

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
    Rule(no_overlap, ("no-overlap",), _RANKS, (Need.STEPS, *_GRADIENTS), limit=not_computing_ns, training_only=True),
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
"""one cause, one change in the code"""

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
"""the same faults seen in what lines and modules of the user's code did; they need owners, and add to the rules above"""

GENERAL: tuple[Rule, ...] = (
    Rule(half_the_bytes, ("communication-bound",), _RANKS, (Need.SIZES,), limit=needed_transfers_ns),
    Rule(launch_overhead, ("launch-overhead",), _DEVICE, _LAUNCHED, limit=launching_ns),
    Rule(memory_bound_kernels, ("memory-bound-kernels",), _DEVICE, (Need.DEVICE,)),
    Rule(small_batch, ("small-batch",), _DEVICE, (Need.DEVICE,)),
    Rule(memory_pressure, ("memory-pressure",), _DEVICE, (Need.MEMORY,)),
    Rule(slow_transport, ("slow-link",), _RANKS),
    Rule(profiler_overhead, ("profiler-overhead",), needs=(Need.UNPROFILED,)),
)
"""what is left when the specific causes are fixed; their remedies would cover up any of them"""
