"""In the job: the profiled window, regions, steps found without code change, step log, memory, writer.

Needs torch and the standard library only, works from PYTHONPATH alone, and never disturbs training: on any
trouble it says so once and switches itself off.
"""
