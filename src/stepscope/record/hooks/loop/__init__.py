"""What the training loop does, learned from what the hooks see: parts, steps, and the routine they settle into.

    loop, optimizer_steps, step_ends, rows, state   one object in layers: what the hooks tell, and what follows
    steps, step_unit                                where a step ends and the next begins
    routine, pattern, stretch, event_tokens         steps that go like the last one, which are only timed
    parts, threads                                  the parts of a step; which thread trains
    optimizers_alive, parameter_watch               which optimizers exist; updates that no hook sees
    batch_size, call_search, job_notes              what is learned about the job

The recorder hears of parts as regions; whatever is learned ends up in run.json.
"""
