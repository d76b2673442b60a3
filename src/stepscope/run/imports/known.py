"""The one list of formats that can be imported and that are picked up in a run folder.

A new format is one line here: its `Format` is defined beside its reader's look, in a file of this folder named by it.
The order counts: the first that says yes has the file, so those told by a magic number come first.
"""

from stepscope.run.imports.format import Format
from stepscope.run.imports.kineto import KINETO
from stepscope.run.imports.nsight import NSIGHT_COMPUTE, NSIGHT_COMPUTE_REPORT, NSIGHT_SYSTEMS, NSIGHT_SYSTEMS_REPORT

FORMATS: tuple[Format, ...] = (
    NSIGHT_SYSTEMS,
    NSIGHT_SYSTEMS_REPORT,
    NSIGHT_COMPUTE_REPORT,
    NSIGHT_COMPUTE,
    KINETO,
)
