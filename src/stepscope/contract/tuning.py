"""What both sides of `stepscope tune` know: the file that a trial leaves, and the names of what it can set in a job.

rank00000.trial.jsonl   one line: {"losses", "parameters": {"sum", "size"}, "took", "loaders", "optimizer",
                        "threads", "convolutions"}
"""

TRIAL = "trial.jsonl"
"""one line; not `.json`, which trace viewers take for a trace"""

WORKERS, PIN, PREFETCH, PERSISTENT = (
    "loader.num_workers",
    "loader.pin_memory",
    "loader.prefetch_factor",
    "loader.persistent_workers",
)
BUCKET, BUCKET_VIEW = "ddp.bucket_cap_mb", "ddp.gradient_as_bucket_view"
FUSED = "optimizer.fused"
TF32, BENCHMARK = "precision.tf32", "cudnn.benchmark"
COMPILE = "compile.model"

FUSED_OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")
"""of torch, those that have a fused form"""

VARIABLES = (
    *("OMP_NUM_THREADS", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "PYTORCH_CUDA_ALLOC_CONF"),
    *("TORCH_NCCL_HIGH_PRIORITY", "NCCL_ALGO", "NCCL_PROTO"),
)
"""of the environment, those that are tried; no others are taken from a file"""
SETTINGS = (WORKERS, PIN, PREFETCH, PERSISTENT, BUCKET, BUCKET_VIEW, FUSED, TF32, BENCHMARK, COMPILE)
