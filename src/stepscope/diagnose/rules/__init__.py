"""Rules over the account, one fault each. A rule states its condition, its evidence, what to change, and the change
to the replay that stands for the fix; what the fix saves is the replay's answer, never the rule's.
"""

from stepscope.diagnose.finding import Rule
from stepscope.diagnose.rules.allocator import allocator
from stepscope.diagnose.rules.communication_bound import communication_bound
from stepscope.diagnose.rules.data_loading import data_loading
from stepscope.diagnose.rules.expert_imbalance import expert_imbalance
from stepscope.diagnose.rules.host_device_sync import host_device_sync
from stepscope.diagnose.rules.host_stall import host_stall
from stepscope.diagnose.rules.host_to_device_copy import host_to_device_copy
from stepscope.diagnose.rules.launch_overhead import launch_overhead
from stepscope.diagnose.rules.memory_bound_attention import memory_bound_attention
from stepscope.diagnose.rules.memory_bound_kernels import memory_bound_kernels
from stepscope.diagnose.rules.memory_pressure import memory_pressure
from stepscope.diagnose.rules.mixed_precision_overhead import mixed_precision_overhead
from stepscope.diagnose.rules.no_overlap import no_overlap
from stepscope.diagnose.rules.optimizer import optimizer
from stepscope.diagnose.rules.pipeline_bubble import pipeline_bubble
from stepscope.diagnose.rules.precision import precision
from stepscope.diagnose.rules.profiler_overhead import profiler_overhead
from stepscope.diagnose.rules.recomputation import recomputation
from stepscope.diagnose.rules.redundant_communication import redundant_communication
from stepscope.diagnose.rules.slow_link import slow_link
from stepscope.diagnose.rules.small_batch import small_batch
from stepscope.diagnose.rules.straggler import straggler
from stepscope.diagnose.rules.too_many_small_collectives import too_many_small_collectives

SPECIFIC: tuple[Rule, ...] = (
    straggler,
    expert_imbalance,
    pipeline_bubble,
    slow_link,
    data_loading,
    host_stall,
    allocator,
    host_to_device_copy,
    host_device_sync,
    mixed_precision_overhead,
    redundant_communication,
    no_overlap,
    too_many_small_collectives,
    recomputation,
    memory_bound_attention,
    precision,
    optimizer,
)
"""one cause, one change in the code"""

GENERAL: tuple[Rule, ...] = (
    communication_bound,
    launch_overhead,
    memory_bound_kernels,
    small_batch,
    memory_pressure,
    profiler_overhead,
)
"""what is left when the specific causes are fixed; their remedies would cover up any of them"""
