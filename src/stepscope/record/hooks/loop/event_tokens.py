"""What the events of a training loop are recognised by: whole numbers, compared once per event.

Optimizers have their own, larger ones: where they lie in memory.
"""

DATA_BEGINS, DATA_ENDS, NO_BATCH, BACKWARD_BEGINS, BACKWARD_ENDS, SYNC_BEGINS, SCHEDULE_BEGINS = range(1, 8)
FORWARD_ENDS, FORWARD_BEGINS = 8, 9  # up to 12: with gradients or without, of a trained model or another one
LOADER_BEGINS, LOADER_ENDS, ROW_BEGINS, QUIET_ROW_BEGINS, ROW_ENDS, STEPS_ROW_ENDS = range(13, 19)
STRETCH_ENDS, STRETCH_BEGINS = 19, 1000  # and its number of micro-batches added
STEPS_ROW = 1  # added to an optimizer's token where it begins a row
