"""A whole training from a YAML or TOML file: strategy, precision, linear warm-up and decay, accumulation, recorded.

Run it:   python examples/recipes/trainer_from_config.py OUT
"""

import sys
from pathlib import Path

import torch

import stepscope

CONFIG = """
[workload]
name = "gpt"
d_model = 32
num_layers = 1
num_heads = 2
seq_len = 16
vocab_size = 64
batch_size = 2

[train]
steps = 14
lr = 1e-3
grad_accum = 2

[scheduler]
warmup_steps = 4
decay = "cosine"

[profile]
wait = 6
warmup = 1
active = 2
"""


def main(out: Path) -> None:
    torch.set_num_threads(1)
    config = out / "job.toml"
    config.write_text(CONFIG)
    trainer = stepscope.Trainer(str(config), overrides=[f"output.dir={out / 'train'}", "train.lr=0.002"], say=print)
    trainer.train(profile=True)
    print((out / "train" / "summary.txt").read_text()[:400])
    assert (out / "train" / "run" / "run.json").exists()
    assert list((out / "train" / "tensorboard").glob("events.out.tfevents.*"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
