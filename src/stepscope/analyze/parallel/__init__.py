"""How the job is parallel: which strategy and which group serves it, and one file per dimension that looks at what
it costs (buckets, sharding, tensor, context, expert and pipeline parallelism)."""
