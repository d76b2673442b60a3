"""Training jobs of seven kinds, as a user would have them, without a word about recording.

    ownership_job.py nanogpt|checkpointing|compiled|lightning|transformers [STEPS]
    torchrun --nproc-per-node=2 ownership_job.py fsdp2|pipeline [STEPS]

On a machine with a GPU they train there, all ranks on the first one.
"""

import math
import os
import sys
import tempfile

if "RANK" in os.environ:  # ranks that share one device have to look like ranks on different hosts to NCCL
    os.environ["NCCL_HOSTID"] = f"rank{os.environ['RANK']}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_IB_DISABLE", "1")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
WIDTH, LAYERS, HEADS, VOCAB, SEQ, BATCH = (768, 8, 12, 8192, 512, 16) if CUDA else (64, 4, 4, 512, 32, 8)
ACCUMULATE = 2
MICROBATCHES = 4


class Attention(nn.Module):
    """Causal attention over all heads."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        """Return what the tokens attend to."""
        b, t, w = x.shape
        q, k, v = self.qkv(x).split(WIDTH, dim=2)
        q, k, v = (z.view(b, t, HEADS, w // HEADS).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(b, t, w))


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x):
        """Return the block's output."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Embeddings, blocks, and the head."""

    def __init__(self, *, checkpointed=False):
        super().__init__()
        self.checkpointed = checkpointed
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(SEQ, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids, targets=None):
        """Return the logits, with the loss where there are targets."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Tokens(Dataset):
    """Pieces of one long row of tokens."""

    def __init__(self, batches):
        self.data = torch.randint(0, VOCAB, (batches * BATCH + SEQ,))

    def __len__(self):
        return len(self.data) - SEQ

    def __getitem__(self, i):
        return self.data[i : i + SEQ], self.data[i + 1 : i + SEQ + 1] if i + SEQ < len(self.data) else self.data[:SEQ]


def half():
    return torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=CUDA)


def get_batch(data):
    ix = torch.randint(len(data) - SEQ - 1, (BATCH,))
    x = torch.stack([data[i : i + SEQ] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + SEQ] for i in ix])
    if CUDA:
        return x.pin_memory().to(DEVICE, non_blocking=True), y.pin_memory().to(DEVICE, non_blocking=True)
    return x, y


def learning_rate(i, steps):
    return 6e-4 * (i + 1) / 10 if i < 10 else 6e-4 * (0.55 + 0.45 * math.cos(math.pi * i / steps))


def nanogpt(steps, *, checkpointed=False, compiled=False):
    """Train as nanoGPT does: batches cut from one long array, accumulation, clipping, a schedule, a log line."""
    model = GPT(checkpointed=checkpointed).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=CUDA)
    run = torch.compile(model) if compiled else model
    data = torch.randint(0, VOCAB, (100_000,))
    x, y = get_batch(data)
    for i in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(i, steps)
        for _ in range(ACCUMULATE):
            with half():
                _, loss = run(x, y)
                loss = loss / ACCUMULATE
            x, y = get_batch(data)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if i % 10 == 0:
            sys.stdout.write(f"iter {i}: loss {loss.item() * ACCUMULATE:.4f}\n")


def fsdp2(steps):
    """Train with fully sharded parameters."""
    from torch.distributed.fsdp import fully_shard

    model = GPT().to(DEVICE)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _, (x, y) in zip(range(steps), DataLoader(Tokens(steps), BATCH), strict=False):
        with half():
            _, loss = model(x.to(DEVICE), y.to(DEVICE))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def pipeline(steps):
    """Train a stage per rank, one forward and one backward in turn."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, world = dist.get_rank(), dist.get_world_size()
    stage = nn.Sequential(*(Block() for _ in range(LAYERS // world))).to(DEVICE)
    schedule = Schedule1F1B(
        PipelineStage(stage, rank, world, DEVICE), MICROBATCHES, loss_fn=lambda out, wanted: F.mse_loss(out, wanted)
    )
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-4)
    x = torch.randn(BATCH, SEQ, WIDTH, device=DEVICE)
    wanted = torch.randn_like(x)
    for _ in range(steps):
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=wanted)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()


def lightning(steps):
    """Train with Lightning."""
    import lightning as L

    class Lit(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = GPT()

        def training_step(self, batch, _index):
            x, y = batch
            _, loss = self.model(x, y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    kind = {"accelerator": "gpu" if CUDA else "cpu", "devices": 1, "precision": "bf16-mixed" if CUDA else "32-true"}
    trainer = L.Trainer(max_steps=steps, gradient_clip_val=1.0, **kind, **off)
    trainer.fit(Lit(), DataLoader(Tokens(steps), BATCH))


def transformers(steps):
    """Train with the Transformers Trainer."""
    import transformers as T

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gpt = GPT()

        def forward(self, input_ids, labels):
            logits, loss = self.gpt(input_ids, labels)
            return {"loss": loss, "logits": logits}

    class Rows(Tokens):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return {"input_ids": x, "labels": y}

    settings = T.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=ACCUMULATE,
        report_to=[],
        save_strategy="no",
        logging_steps=10,
        disable_tqdm=True,
        use_cpu=not CUDA,
        bf16=CUDA,
    )
    T.Trainer(model=Model(), args=settings, train_dataset=Rows(ACCUMULATE * steps)).train()


KINDS = {
    "nanogpt": nanogpt,
    "fsdp2": fsdp2,
    "pipeline": pipeline,
    "compiled": lambda steps: nanogpt(steps, compiled=True),
    "checkpointing": lambda steps: nanogpt(steps, checkpointed=True),
    "lightning": lightning,
    "transformers": transformers,
}


def main():
    torch.manual_seed(0)
    if "RANK" in os.environ:
        if CUDA:
            torch.cuda.set_device(0)
        dist.init_process_group("nccl" if CUDA else "gloo")
    KINDS[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 30)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
