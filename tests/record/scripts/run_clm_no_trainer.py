"""The shape of Transformers' `run_clm_no_trainer.py`: a loop of its own around Accelerate."""

import math

import transformers  # looks for torch before it imports it
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import GPT2Config, GPT2LMHeadModel, default_data_collator, get_scheduler

import torch  # isort: skip
from digests import print_digests  # type: ignore[import-not-found]  # isort: skip
from torch.utils.data import DataLoader

transformers.utils.logging.set_verbosity_error()

if __name__ == "__main__":
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    ids = torch.randint(64, (40, 16), generator=torch.Generator().manual_seed(1))
    blocks = [{"input_ids": row, "labels": row} for row in ids]
    train = DataLoader(blocks[:32], shuffle=True, collate_fn=default_data_collator, batch_size=2)
    held_out = DataLoader(blocks[32:], collate_fn=default_data_collator, batch_size=2)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=24)
    model, optimizer, train, held_out, scheduler = accelerator.prepare(model, optimizer, train, held_out, scheduler)
    for epoch in range(3):
        model.train()
        for batch in train:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            accelerator.print(epoch, loss.item().hex())
        model.eval()
        losses = []
        for batch in held_out:
            with torch.no_grad():
                losses.append(accelerator.gather_for_metrics(model(**batch).loss.repeat(2)))
        accelerator.print("perplexity", math.exp(torch.cat(losses).mean()).hex())
    print_digests(accelerator.unwrap_model(model), optimizer.optimizer)
    accelerator.end_training()
