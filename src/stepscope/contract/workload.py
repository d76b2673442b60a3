"""The workload of a benchmark or a training where nothing else is asked for: about 0.1 s per step on one core."""

from types import MappingProxyType

WORKLOAD_DEFAULTS = MappingProxyType(
    {"d_model": 256, "num_layers": 4, "num_heads": 8, "seq_len": 128, "vocab_size": 1024, "batch_size": 8}
)
DEFAULT_WORKLOAD = "gpt"
