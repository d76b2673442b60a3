"""In the job: the recorder inside other people's training loops, one file per framework, imported only when named.

    accelerate      StepscopeKwargs   a handler for `Accelerator(kwargs_handlers=[...])` and `accelerator.profile()`
    transformers    StepscopeCallback `Trainer(callbacks=[...])`
    lightning       StepscopeCallback `Trainer(callbacks=[...])`, of `lightning` or `pytorch_lightning`
    deepspeed       recorded          around the loop of a DeepSpeed engine
    torchrun        recorded          around any loop, in a process that torchrun started or in a single one
    slurm           join              the process group of a job that `srun` started, then as with torchrun

All of them stand on `loop_recording`: steps and regions are found by the hooks of `stepscope record`, so the loop
stays as it is and a step means the same thing everywhere.
"""
