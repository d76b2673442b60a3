"""`stepscope.lab.bench.collectives`, as jobs start it."""

from runpy import run_module

if __name__ == "__main__":
    run_module("stepscope.lab.bench.collectives", run_name="__main__", alter_sys=True)
else:
    from stepscope.lab.bench.collectives import *  # noqa: F403
