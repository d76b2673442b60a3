"""In a job that `stepscope tune` started: settings put in from outside, what came of them, and the end after N steps.

constructors       DataLoader, DDP and optimizers made with other arguments than the script gives
settings           every setting by its name, and which of them really took hold
seeds              trials of a job that sets no seed draw the same numbers
results            losses and a sum over the parameters: does the job still compute the same?
begin              all of it, put into this process
ending             after its last step the process writes what is left and ends with code 0
"""
