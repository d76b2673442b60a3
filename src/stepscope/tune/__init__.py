"""Which settings that need no change of code make a job faster? What to try, and what to make of the trials.

    job              what a first run tells of the job: device, ranks, loaders, optimizer, threads
    candidates       which settings are worth a trial, in the order of the findings
    trial            what one trial left: time per step, losses, sums over the parameters
    agreement        does the job still compute the same?
    gain             what a setting saves, with an interval corrected for the number of settings tried
    rounds           who runs when, and who is given up early
    verdict          what to keep

Nothing here starts a job: `cli/tune` does, and hands in what came of it.
"""
