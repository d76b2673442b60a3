"""Pipelines: what each stage did in which order (`actions`), the shape of the pipeline, its ideal schedule, and the
measured bubble."""
