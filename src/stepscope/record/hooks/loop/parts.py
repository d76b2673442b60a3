"""The parts of a training step that hooks tell of, each a bit, and the region that each becomes."""

from stepscope.contract import step_line as regions

DATA, FORWARD, BACKWARD, OPTIMIZER, LOADER, SAVING = 1, 2, 4, 8, 16, 32
QUIET = 64  # a row of forwards without gradients
STRETCH = 128  # micro-batches that are not timed
WORK = DATA | FORWARD | BACKWARD
REGION = {
    DATA: regions.DATA_LOADING,
    FORWARD: regions.FORWARD,
    BACKWARD: regions.BACKWARD,
    OPTIMIZER: regions.OPTIMIZER,
    LOADER: regions.LOADER_START,
    SAVING: regions.CHECKPOINT,
}
PART = {name: part for part, name in REGION.items()}
HIDDEN_INSIDE = {
    DATA: WORK,
    FORWARD: WORK,
    BACKWARD: WORK,
    OPTIMIZER: OPTIMIZER,
    LOADER: WORK | LOADER,
    SAVING: SAVING,
}
"""inside which parts another one does not count"""
