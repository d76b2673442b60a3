"""Steps in traces that mark none: annotations of frameworks and serving engines, else the period of the kernels."""
