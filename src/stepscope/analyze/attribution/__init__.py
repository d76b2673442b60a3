"""Every instant of the step gets one owner: the budget, idle time by cause, the step without the profiler, and the
waterfall from peak to achieved."""
