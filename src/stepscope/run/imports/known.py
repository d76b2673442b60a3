"""The one list of formats that can be imported and that are picked up in a run folder.

A new format is one line here: its `Format` is defined beside its reader's look, in a file of this folder named by it.
The order counts: the first that says yes has the file, so those told by a magic number come first.
"""

from stepscope.run.imports.format import Format
from stepscope.run.imports.kineto import KINETO
from stepscope.run.imports.nccl import NCCL_INSPECTOR, NCCL_LOG
from stepscope.run.imports.nsight import NSIGHT_COMPUTE, NSIGHT_COMPUTE_REPORT, NSIGHT_SYSTEMS, NSIGHT_SYSTEMS_REPORT
from stepscope.run.imports.torch_dumps import FLIGHT_RECORDER, MEMORY_SNAPSHOT

FORMATS: tuple[Format, ...] = (
    NSIGHT_SYSTEMS,
    NSIGHT_SYSTEMS_REPORT,
    NSIGHT_COMPUTE_REPORT,
    NSIGHT_COMPUTE,
    MEMORY_SNAPSHOT,
    FLIGHT_RECORDER,
    NCCL_INSPECTOR,
    KINETO,
    NCCL_LOG,
)
