"""While the job runs, in its helper processes: never on the training thread.

live               what the helper does with each line and a few times a second; `settings` is what it needs
asked_window       a profile window that somebody asked for: every rank's newest step -> one plan for all
alarm_window       a late rank or slower steps, by the logs of all ranks -> the job asks for a window itself
stalls             no step for longer than steps take: where is the rank? `whereabouts` answers in the job
metrics            what the lines of the step log sum to; `prometheus`, `otlp`, `endpoint` tell it to others
"""
