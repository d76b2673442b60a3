"""Exercises of guides to distributed profiling under their names, over the toolkit; torch through lab/bench only.

`docs/lab/guides.md` maps every other name of the guides to a command or a class.
"""

from pathlib import Path
from statistics import median
from typing import Any

from stepscope.errors import UsageError
from stepscope.lab.toolkit import MemoryProfiler, analysed, calculate_mfu, own_row, show_values

# of a model's configuration: the guides' names, then those of Transformers
_NAMES = {
    "layers": ("num_layers", "num_hidden_layers"),
    "d_model": ("hidden_dim", "hidden_size", "d_model"),
    "heads": ("num_heads", "num_attention_heads"),
    "vocab": ("vocab_size",),
}


def NVTXAnnotatedModule(module: Any, name: str) -> Any:
    """Mark the forward pass of a module, and of those in it, under a name; return the module itself.

    The guides' class of this name wraps the module, which changes the keys of its state dict.
    """
    from stepscope.record.annotate import annotate_modules

    annotate_modules(module, name=name)
    return module


class OverlapProfiler:
    """How much of a DistributedDataParallel model's communication its backward pass hides."""

    def __init__(self, model: Any, *, loss_fn: Any = None) -> None:
        self.model, self.loss_fn = model, loss_fn

    def profile_step(self, input_data: Any, num_trials: int = 10) -> dict[str, float | None]:
        """Return ms of forward and backward without and with gradient synchronisation, and the overlap from a trace.

        Every rank has to call it. `comm_only_ms` is the recorded time in collectives: with gloo and NCCL alike it has
        the wait for later ranks in it.
        """
        from stepscope.lab.bench.in_process import barrier, model_device, passes_ms
        from stepscope.record.quick_check import to_device

        batch = to_device(input_data, model_device(self.model))
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(2 + num_trials):  # DDP rebuilds its buckets after the first
            for sync, measured in times.items():
                barrier()
                measured.append(sum(passes_ms(self.model, batch, self.loss_fn, sync=sync)))
        report = analysed(lambda: passes_ms(self.model, batch, self.loss_fn), num_trials)
        row = own_row(report["ranks"])
        compute, total = (median(times[sync][2:]) for sync in (False, True))
        comm = (row["comm_ms"] or 0.0) / row["num_steps"]
        found = {
            "compute_only_ms": compute,
            "comm_only_ms": comm,
            "total_time_ms": total,
            "sequential_ms": compute + comm,
            "overlap_efficiency": report["step"]["overlap_efficiency"],
        }
        show_values("overlap of compute and communication", found)
        return found


def count_flops_per_token(config: Any) -> int:
    """Return the forward FLOPs per token of a transformer: L(24 H² + 4 S H) + 2 V H, two per multiply-add.

    `config` has `hidden_dim`, `num_layers`, `num_heads`, `vocab_size` and `seq_len`, or Transformers' names for them.
    Training is three times as much.
    """
    from stepscope.lab.predict.model_shape import Transformer, forward_flops_per_token

    sizes: dict[str, Any] = {part: _size(config, *names) for part, names in _NAMES.items()}
    model = Transformer(**sizes, mlp_width=4 * sizes["d_model"])
    return forward_flops_per_token(model, seq_len=_size(config, "seq_len", "max_position_embeddings"))["total"]


def _size(config: Any, *names: str) -> int:
    found = next((getattr(config, name) for name in names if getattr(config, name, None) is not None), None)
    if found is None:
        raise UsageError(f"config has no {names[0]}")
    return int(found)


def measure_mfu(
    model: Any, config: Any, num_warmup: int = 5, num_measure: int = 20, *, peak_flops: float | str | None = None
) -> dict[str, float | None]:
    """Return time, FLOPs and MFU of forward and backward passes on random tokens; `config` also has `batch_size`."""
    from stepscope.lab.bench.in_process import model_device, passes_ms, random_tokens

    batch_size, seq_len = _size(config, "batch_size"), _size(config, "seq_len", "max_position_embeddings")
    tokens = random_tokens((batch_size, seq_len), _size(config, "vocab_size"), model_device(model))

    def mean(output: Any) -> Any:
        return getattr(output, "logits", output).float().mean()

    times = [sum(passes_ms(model, tokens, mean)) for _ in range(num_warmup + num_measure)]
    step_ms = median(times[num_warmup:])
    flops = 3 * count_flops_per_token(config) * batch_size * seq_len
    found = {
        "time_per_step_ms": step_ms,
        "flops_per_step": flops,
        "achieved_tflops": flops / step_ms / 1e9,
        "mfu": calculate_mfu(flops, 1, step_ms / 1e3, 1, peak_flops),
    }
    show_values("MFU", found)
    return found


def plot_calibration(results: dict[str, Any], path: str | Path = "alpha_beta_calibration.svg") -> Path:
    """Write the times that `calibrate_alpha_beta` measured, and the curve through them, as SVG; return the path."""
    from stepscope.contract.run_folder import atomic_write
    from stepscope.lab.predict.calibrate import Point, calibrate
    from stepscope.lab.report.sheets import calibration_sheet
    from stepscope.lab.report.svg import sheet_svg

    world = results["world_size"]
    points = [Point("all_reduce", world, m["size"], 1e9 * m["time"]) for m in results["measurements"]]
    with atomic_write(path) as f:
        f.write(sheet_svg(calibration_sheet(calibrate(points))).encode())
    return Path(path)


def profile_training_step(
    model: Any, optimizer: Any, input_data: Any, target: Any = None, *, loss_fn: Any = None
) -> list[Any]:
    """Train one step after a first one that makes the optimizer's state; return snapshots of memory through it."""
    from stepscope.lab.bench.in_process import loss_of, model_device
    from stepscope.record.quick_check import to_device

    memory = MemoryProfiler()
    for labelled in (False, True):

        def mark(label: str, labelled: bool = labelled) -> None:
            if labelled:
                memory.snapshot(label)

        memory.reset()
        mark("before")
        batch = to_device((input_data, target) if loss_fn is not None else input_data, model_device(model))
        mark("input on the device")
        loss = loss_of(model, batch, loss_fn)
        mark("after forward (activations)")
        loss.backward()
        mark("after backward (gradients)")
        optimizer.step()
        mark("after optimizer step")
        optimizer.zero_grad()
        mark("after zero_grad")
    memory.report()
    return memory.snapshots
