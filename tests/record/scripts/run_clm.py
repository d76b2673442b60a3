"""The shape of Transformers' `run_clm.py`: its Trainer on a tiny model, one process or two ranks of DDP."""

import logging
import tempfile

import transformers  # looks for torch before it imports it
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

import torch  # isort: skip
from digests import print_digests  # type: ignore[import-not-found]  # isort: skip

logging.disable(logging.WARNING)
transformers.utils.logging.disable_progress_bar()


class Blocks(torch.utils.data.Dataset):
    """Token ids in blocks of one length, as `group_texts` makes them."""

    def __init__(self, count: int) -> None:
        self._ids = torch.randint(64, (count, 16), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._ids[index], "labels": self._ids[index]}


class Losses(TrainerCallback):
    """Prints what is logged."""

    def on_log(self, args, state, control, logs=None, **_):
        if state.is_world_process_zero:
            print(state.global_step, *[f"{k}={logs[k]!r}" for k in ("loss", "eval_loss", "grad_norm") if k in logs])


if __name__ == "__main__":
    torch.set_num_threads(1)
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=20, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        eval_strategy="steps", eval_steps=8, save_strategy="steps", save_steps=10, logging_steps=1, use_cpu=True,
        report_to=[], disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=Blocks(64), eval_dataset=Blocks(8), callbacks=[Losses()])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    if trainer.is_world_process_zero():
        print_digests(model, trainer.optimizer.optimizer)
