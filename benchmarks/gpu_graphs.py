"""What launching a step as a CUDA graph saves, predicted from a recording of the eager job and measured, on one GPU.

    PYTHONPATH=src python benchmarks/gpu_graphs.py all OUT [JOB,JOB]   # compile, time, record; then the table
    PYTHONPATH=src python benchmarks/gpu_graphs.py table OUT           # the table again, as predicted now

Each job runs in these forms, in turns of blocks in one process:
    eager      as it is written, and as it is recorded
    fused      torch.compile(model): the compiler's kernels without graphs
    compiled   torch.compile(model, mode="reduce-overhead"): forward and backward as graphs, the rest eager
    graphed    torch.cuda.make_graphed_callables(model): forward and backward as graphs of the eager kernels
    whole      torch.cuda.graph around the whole step, optimizer included (capturable=True)
A form that cannot be made is listed with the reason. All jobs compile at the same time and are timed in turn.
"""

import contextlib
import fcntl
import functools
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMS = ("eager", "fused", "compiled", "graphed", "whole")


class Job:
    """A model, its inputs, a loss of its outputs, and an optimizer."""

    amp = True

    def build(self) -> Any:
        raise NotImplementedError

    def __init__(self, capturable=False):
        torch.manual_seed(0)
        self.model, self.inputs = self.build()
        self.model.to(DEVICE)
        self.optimizer = self.make_optimizer(capturable)
        self.run = self.model
        self.log = 0.0

    def autocast(self, **more):
        return torch.autocast(DEVICE, dtype=torch.bfloat16, **more) if self.amp else contextlib.nullcontext()

    def make_optimizer(self, capturable):
        return torch.optim.AdamW(self.model.parameters(), 1e-4, fused=DEVICE == "cuda", capturable=capturable)

    def loss(self, out):
        return out.float().square().mean()

    def step(self):
        with self.autocast():
            loss = self.loss(self.run(*self.inputs))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def images(count, side, channels_last=False):
    x = torch.rand(count, 3, side, side, device=DEVICE)
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


class Resnet18(Job):
    def build(self):
        from torchvision.models import resnet18

        return resnet18(num_classes=100), (images(64, 96),)


class Resnet50(Job):
    def build(self):
        from torchvision.models import resnet50

        return resnet50(num_classes=100).to(memory_format=torch.channels_last), (images(64, 128, True),)

    def make_optimizer(self, capturable):
        return torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9, fused=True)


class Mobilenet(Job):
    def build(self):
        from torchvision.models import mobilenet_v3_large

        return mobilenet_v3_large(num_classes=100), (images(64, 160),)

    def make_optimizer(self, capturable):
        return torch.optim.AdamW(self.model.parameters(), 1e-4, capturable=capturable)


class Vit(Job):
    def build(self):
        from torchvision.models import vit_b_16

        return vit_b_16(num_classes=100), (images(32, 224),)


class Transformer(Job):
    """A model of a class of Transformers with random weights."""

    def config(self, t) -> Any:
        raise NotImplementedError

    def model_class(self, t) -> Any:
        raise NotImplementedError

    def build(self):
        import transformers

        transformers.logging.set_verbosity_error()
        config, count, length = self.config(transformers)
        model = self.model_class(transformers)(config)
        return model, (torch.randint(0, config.vocab_size, (count, length), device=DEVICE),)

    def loss(self, out):
        return F.cross_entropy(out.logits[:, :-1].flatten(0, 1), self.inputs[0][:, 1:].flatten())


class Llama(Transformer):
    def config(self, t):
        return t.LlamaConfig(
            vocab_size=16384, hidden_size=768, intermediate_size=3072, num_hidden_layers=8, num_attention_heads=12,
            max_position_embeddings=512, use_cache=False, attn_implementation="sdpa"), 16, 512  # fmt: skip

    def model_class(self, t):
        return t.LlamaForCausalLM


class Gpt2(Transformer):
    amp = False

    def config(self, t):
        return t.GPT2Config(vocab_size=16384, n_embd=512, n_layer=8, n_head=8, n_positions=256, use_cache=False), 4, 256

    def model_class(self, t):
        return t.GPT2LMHeadModel

    def make_optimizer(self, capturable):
        return torch.optim.AdamW(self.model.parameters(), 1e-4, capturable=capturable)


class Bert(Transformer):
    def config(self, t):
        return t.BertConfig(vocab_size=16384, num_hidden_layers=6, hidden_size=512, num_attention_heads=8), 16, 128

    def model_class(self, t):
        return t.BertForMaskedLM


class Perceptron(Job):
    amp = False

    def build(self):
        layers = [part for _ in range(6) for part in (nn.Linear(512, 512), nn.LayerNorm(512), nn.ReLU())]
        return nn.Sequential(*layers), (torch.randn(256, 512, device=DEVICE),)

    def make_optimizer(self, capturable):
        return torch.optim.Adam(self.model.parameters(), 1e-3, capturable=capturable)


class LogsEachStep(Perceptron):
    """The perceptron with gradient clipping and a loss that is read in every step."""

    def step(self):
        with self.autocast():
            loss = self.loss(self.run(*self.inputs))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.log = loss.item()


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(128, 256), nn.Linear(256, 64)

    def forward(self, x):
        h = c = torch.zeros(x.shape[1], 256, device=x.device)
        for one in x:
            h, c = self.cell(one, (h, c))
        return self.head(h)


class Recurrent(Job):
    amp = False

    def build(self):
        return Cells(), (torch.randn(32, 64, 128, device=DEVICE),)


class Unet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.inward = nn.Conv2d(3, width, 3, padding=1)

        def block(a, b):
            return nn.Sequential(nn.GroupNorm(8, a), nn.SiLU(), nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b),
                                 nn.SiLU(), nn.Conv2d(b, b, 3, padding=1))  # fmt: skip

        self.down = nn.ModuleList([block(width, 2 * width), block(2 * width, 4 * width), block(4 * width, 4 * width)])
        self.up = nn.ModuleList([block(8 * width, 4 * width), block(6 * width, 2 * width), block(3 * width, width)])
        self.outward = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        x, skips = self.inward(x), []
        for part in self.down:
            skips.append(x)
            x = F.avg_pool2d(part(x), 2)
        for part in self.up:
            x = part(torch.cat((F.interpolate(x, scale_factor=2), skips.pop()), 1))
        return self.outward(x)


class Diffusion(Job):
    def build(self):
        return Unet(), (images(16, 64),)


class Ranking(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(100_000, 32) for _ in range(26))
        self.top = nn.Sequential(nn.Linear(26 * 32, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, ids):
        return self.top(torch.cat([table(ids[:, k]) for k, table in enumerate(self.tables)], 1))


class Recommender(Job):
    def build(self):
        return Ranking(), (torch.randint(0, 100_000, (4096, 26), device=DEVICE),)

    def make_optimizer(self, capturable):
        return torch.optim.Adagrad(self.model.parameters(), 1e-2)


class Acting(Job):
    """Acts 16 times without gradients on states from the host, then trains once on all of them."""

    amp = False

    def build(self):
        model = nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 9))
        self.states = torch.randn(16, 64, 32)
        return model, (self.states.flatten(0, 1).to(DEVICE),)

    def step(self):
        with torch.no_grad():
            for state in self.states:
                self.log = self.run(state.to(DEVICE))[:, :8].argmax(-1).cpu().sum()
        super().step()


class Efficientnet(Job):
    def build(self):
        from torchvision.models import efficientnet_b0

        return efficientnet_b0(num_classes=100), (images(32, 128),)


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.rnn, self.head = nn.Embedding(8192, 256), nn.LSTM(256, 512, 2), nn.Linear(512, 8192)

    def forward(self, ids):
        return self.head(self.rnn(self.table(ids))[0])


class Lstm(Job):
    amp = False

    def build(self):
        return Sequence(), (torch.randint(0, 8192, (64, 32), device=DEVICE),)


class Encoder(Job):
    """Eight small encoder layers of torch, and Adam in its default form."""

    def build(self):
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
        return nn.TransformerEncoder(layer, 8), (torch.randn(16, 64, 256, device=DEVICE),)

    def make_optimizer(self, capturable):
        return torch.optim.Adam(self.model.parameters(), 1e-4, capturable=capturable)


class Compiled(Llama):
    """A model that is compiled already, in the default mode."""

    def __init__(self, capturable=False):
        super().__init__(capturable)
        if sys.argv[1] == "run":
            self.run = torch.compile(self.model)


JOBS = {
    one.__name__.lower(): one
    for one in (
        Resnet18, Resnet50, Mobilenet, Vit, Llama, Gpt2, Bert, Perceptron, LogsEachStep, Recurrent, Diffusion,
        Recommender, Acting, Efficientnet, Lstm, Encoder, Compiled,
    )
}  # fmt: skip


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def made(name, form, capturable=False):
    """Return the step of a job in one form, as a function."""
    job = JOBS[name](capturable=capturable or form == "whole")
    if name == "compiled" and form == "eager":
        job.run = torch.compile(job.model)
    if form == "fused":
        job.run = torch.compile(job.model)
    elif form == "compiled":
        job.run = torch.compile(job.model, mode="reduce-overhead", dynamic=False)
    elif form == "graphed":
        with job.autocast(cache_enabled=False):
            job.run = torch.cuda.make_graphed_callables(job.model, job.inputs)
    elif form == "whole":
        if type(job).step is not Job.step:
            raise ValueError("the step reads values on the host")
        return captured(job)
    return job.step


def captured(job):
    job.autocast = functools.partial(job.autocast, cache_enabled=False)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            job.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        job.step()
    job.replay = graph.replay  # the graph works on the tensors of the job
    return lambda: job.replay()


def block_ms(step, count):
    synchronize()
    began = time.perf_counter()
    for _ in range(count):
        step()
    synchronize()
    return (time.perf_counter() - began) * 1e3 / count


def issue_ms(step, count=4):
    """Return the host's time for a step while the device's queue has room."""
    synchronize()
    began = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - began) * 1e3 / count


def measure(name, out, expected):
    """Make all forms of a job, wait for the other jobs, and time the forms in turns."""
    forms, reasons = {}, {}
    for form in FORMS if name != "compiled" else ("eager", "compiled"):
        try:
            step = made(name, form)
            for _ in range(6):
                step()
            synchronize()
            forms[form] = step
        except Exception as error:  # noqa: BLE001 - each compiler has errors of its own
            reasons[form] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}" if str(error) else ""
            synchronize()
    with turn(name, out, expected):
        count = max(int(200 / max(block_ms(forms["eager"], 10), 0.1)), 5)
        times: dict[str, list[float]] = {form: [] for form in forms}
        host: dict[str, list[float]] = {form: [] for form in forms}
        for _ in range(5):
            for form, step in forms.items():
                times[form].append(block_ms(step, count))
                host[form].append(issue_ms(step))
    (out / f"{name}.json").write_text(json.dumps({"times": times, "host": host, "reasons": reasons}))
    os._exit(0)  # threads of the compiler need not end in order


@contextlib.contextmanager
def turn(name, out, expected):
    """Wait until all jobs are ready, and then until no other is in its turn."""
    (out / f"{name}.ready").touch()
    while len(list(out.glob("*.ready"))) < expected and time.time() < float(os.environ["DEADLINE"]):
        time.sleep(0.2)
    with (out / "turn").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def in_turns(names, out, seconds, command):
    """Run a command for each job at the same time; each waits for its turn."""
    for ready in out.glob("*.ready"):
        ready.unlink()
    environment = {**os.environ, "DEADLINE": str(time.time() + seconds)}
    children = [subprocess.Popen(command(name), env=environment, stdout=subprocess.DEVNULL) for name in names]
    for child in children:
        child.wait()


def recording(name, out, expected):
    command = [sys.executable, "-m", "stepscope", "record", "--out", str(out / f"run_{name}"), "--steps", "20:26"]
    return [*command, "--", sys.executable, __file__, "run", name, "40", str(out), str(expected)]


def predicted(run, *settings):
    """Return the measured and the predicted step of a recording in ms."""
    words = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "stepscope", "whatif", str(run), *words, "--json", "-"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found["measured_ms"], found["predicted_ms"]


def show(out):
    every = json.loads((out / "times.json").read_text())
    print("ms per step; the error in % of the recorded step")
    print(f"{'':14s}{'recorded':>9s}{'graphed':>21s}{'compiled':>21s}{'whole':>9s}")
    print(f"{'':23s}" + f"{'predicted':>10s}{'real':>6s}{'error':>5s}" * 2 + f"{'real':>9s}")
    errors: dict[str, list[float]] = {"graphed": [], "compiled": []}
    for name, one in every.items():
        real = {form: statistics.median(values) for form, values in one["times"].items()}
        eager, graphs = predicted(out / f"run_{name}", "launch=graph")
        said = {"graphed": graphs, "compiled": predicted(out / f"run_{name}", "launch=graph", "kernels=fused")[1]}
        line = f"{name:14s}{eager:9.2f}"
        for form, ms in said.items():
            if form not in real:
                line += f"{ms:10.2f}{'-':>6s}{'':5s}"
                continue
            errors[form].append(100 * (ms - real[form]) / eager)
            line += f"{ms:10.2f}{real[form]:6.2f}{errors[form][-1]:5.0f}"
        print(line + (f"{real['whole']:9.2f}" if "whole" in real else f"{'-':>9s}"))
        for form, reason in one["reasons"].items():
            print(f"    {form}: {reason}")
    for form, found in errors.items():
        print(f"{form}: {sum(abs(e) <= 10 for e in found)} of {len(found)} within 10 % of the step")


def main():
    what, rest = sys.argv[1], sys.argv[2:]
    if what == "run":
        job = JOBS[rest[0]]()
        with turn(rest[0], Path(rest[2]), int(rest[3])) if len(rest) > 2 else contextlib.nullcontext():
            for _ in range(int(rest[1])):
                job.step()
            synchronize()
    elif what == "measure":
        measure(rest[0], Path(rest[1]), int(rest[2]))
    else:
        out = Path(rest[0])
        if what == "all":
            names = rest[1].split(",") if len(rest) > 1 else list(JOBS)
            out.mkdir(parents=True, exist_ok=True)
            began = time.time()
            in_turns(names, out, 200, lambda n: [sys.executable, __file__, "measure", n, str(out), str(len(names))])
            print(f"timed after {time.time() - began:.0f} s", flush=True)
            in_turns(names, out, 60, lambda n: recording(n, out, len(names)))
            print(f"recorded after {time.time() - began:.0f} s", flush=True)
            made = {
                name: json.loads((out / f"{name}.json").read_text())
                for name in names
                if (out / f"{name}.json").exists()
            }
            (out / "times.json").write_text(json.dumps(made))
        show(out)


if __name__ == "__main__":
    main()
