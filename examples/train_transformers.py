"""A small GPT-2 trained by Transformers' Trainer, recorded by a callback.

Run it:      torchrun --nproc-per-node=2 examples/train_transformers.py --out run
Read it:     stepscope report run
"""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from stepscope.integrations.transformers import StepscopeCallback

VOCABULARY, SEQUENCE = 512, 64


class Text(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Sequences that count upwards from a random start: easy to learn."""

    def __init__(self, samples: int) -> None:
        starts = torch.randint(0, VOCABULARY, (samples, 1), generator=torch.Generator().manual_seed(0))
        self.ids = (starts + torch.arange(SEQUENCE)) % VOCABULARY

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", default="stepscope-run")
    args = parser.parse_args()

    set_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=SEQUENCE, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    callback = StepscopeCallback(out=args.out, wait=4, warmup=1, active=3)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            output_dir=scratch,
            max_steps=args.steps,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            logging_steps=10,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Text(512), callbacks=[callback])
        trainer.train()
    if trainer.is_world_process_zero():
        print(f"run folder {callback.recording.run_folder}")


if __name__ == "__main__":
    main()
