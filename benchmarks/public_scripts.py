"""Record public training scripts unchanged on a busy machine, and print what their reports say first.

    python benchmarks/public_scripts.py CHECKOUTS --out FOLDER [--only NAME ...] [--busy 2] [--stand-ins FOLDER]

CHECKOUTS holds a folder per repository, prepared by hand: data in place, nothing of the scripts changed. Modules that
are not installed may come from `--stand-ins`. Every second script ends by SIGTERM once it has made its steps. What each
report claims has to be judged by reading the script and timing it: no judgement is part of this file.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from stepscope.document.statements import headline_sentence

_MOST_S = 420.0


class Script(NamedTuple):
    """A script of a repository, and how to run it small."""

    folder: str
    command: tuple[str, ...]
    #: logged steps after which it has shown enough
    steps: int = 30


def _script(folder: str, command: str, steps: int = 30) -> Script:
    return Script(folder, tuple(command.split()), steps)


_GPT = "--n_layer=4 --n_head=4 --n_embd=64 --block_size=32 --batch_size=4 --dropout=0.0"
_RL = "--no-track --no-cuda"
SCRIPTS = {
    "nanoGPT": _script(
        "nanoGPT",
        "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=2 --log_interval=1 "
        f"--max_iters=60 --lr_decay_iters=60 {_GPT}",
    ),
    "minGPT adder": _script("minGPT", "projects/adder/adder.py --trainer.max_iters=60 --trainer.num_workers=0"),
    "minGPT chargpt": _script(
        "minGPT/projects/chargpt",
        "chargpt.py --model.model_type=gpt-nano --trainer.batch_size=4 --trainer.max_iters=60 --trainer.num_workers=0",
    ),
    "wgan_gp": _script("PyTorch-GAN/implementations/wgan_gp", "wgan_gp.py --batch_size 32 --n_epochs 1"),
    "gan": _script("PyTorch-GAN/implementations/gan", "gan.py --batch_size 32 --n_epochs 1"),
    "dcgan": _script(
        "examples/dcgan",
        "main.py --dataset fake --batchSize 8 --ngf 16 --ndf 16 --niter 1 --workers 0",
    ),
    "siamese": _script("examples/siamese_network", "main.py --batch-size 8 --epochs 1 --dry-run"),
    "mnist": _script("examples/mnist", "main.py --batch-size 64 --epochs 1 --log-interval 5", 40),
    "mnist_rnn": _script("examples/mnist_rnn", "main.py --batch-size 32 --epochs 1", 30),
    "vae": _script("examples/vae", "main.py --batch-size 64 --epochs 1", 40),
    "word_language_model": _script(
        "examples/word_language_model", "main.py --epochs 1 --emsize 64 --nhid 64 --bptt 20", 40
    ),
    "actor_critic": _script("examples/reinforcement_learning", "actor_critic.py", 40),
    "reinforce": _script("examples/reinforcement_learning", "reinforce.py", 40),
    "pygcn": _script("pygcn/pygcn", "train.py --no-cuda --epochs 60", 60),
    "unet": _script("Pytorch-UNet", "train.py --epochs 1 --batch-size 1 --scale 0.1", 20),
    "dqn": _script("cleanrl", f"cleanrl/dqn.py {_RL} --learning-starts 200 --total-timesteps 900", 60),
    "ppo": _script("cleanrl", f"cleanrl/ppo.py {_RL} --num-steps 64 --total-timesteps 2048", 60),
    "td3": _script(
        "cleanrl",
        f"cleanrl/td3_continuous_action.py {_RL} --env-id Pendulum-v1 --learning-starts 50 --total-timesteps 400", 60,
    ),
    "sac": _script(
        "cleanrl",
        f"cleanrl/sac_continuous_action.py {_RL} --env-id Pendulum-v1 --learning-starts 50 --total-timesteps 400", 60,
    ),
    "lightning_gan": _script(
        "pytorch-lightning/examples/pytorch/domain_templates", "generative_adversarial_net.py --batch_size 16", 40
    ),
}  # fmt: skip


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Run so many endless loops beside."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()


def record(script: Script, checkouts: Path, run: Path, *, stand_ins: Path | None, ended: bool) -> str:
    """Record a script into a run folder; return how it ended: by itself, by our signal, or after too long."""
    folder = checkouts / script.folder
    paths = [str(path) for path in (stand_ins, checkouts / script.folder.split("/")[0]) if path is not None]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "stepscope.cli.main", "record", "--out", str(run), "--", sys.executable]
    log = run.with_suffix(".log").open("w")
    job = subprocess.Popen(
        [*command, *script.command], cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True
    )
    since = time.monotonic()
    while job.poll() is None:
        is_late = time.monotonic() - since > _MOST_S
        if is_late or (ended and _logged(run) >= script.steps):
            os.killpg(job.pid, signal.SIGTERM)
            job.wait(60)
            return "too long" if is_late else "SIGTERM"
        time.sleep(1)
    return f"exit {job.returncode}"


def _logged(run: Path) -> int:
    try:
        return (run / "rank00000.steps.jsonl").read_text().count("\n")
    except OSError:
        return 0


def told(run: Path) -> list[str]:
    """Return headline, verdict and first findings of a run."""
    report = [sys.executable, "-m", "stepscope.cli.main", "report", str(run), "--json", "-"]
    done = subprocess.run(report, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        return [(done.stderr.strip() or "no report").splitlines()[-1]]
    found = json.loads(done.stdout)
    step = found["step"]
    lines = [
        f"{found['run']['num_steps']} steps profiled; {step['unprofiled_ms']} ms per step, waiting for a core "
        f"{step['core_wait_ms']} ms, starved {step['starved']}",
        headline_sentence(found),
        found["verdict_reason"],
    ]
    return lines + [
        f"{f['title']}: {f['saving_alone_ms']:.3f} ms ({f['saving_pct']:.1f} %)" for f in found["findings"][:3]
    ]


def main() -> None:
    """Record and report the scripts."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("checkouts", type=Path)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--only", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    arguments.add_argument("--busy", type=int, default=2, help="endless loops beside each script")
    arguments.add_argument("--stand-ins", type=Path)
    given = arguments.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(SCRIPTS):
        if name not in given.only:
            continue
        run = given.out / name.replace(" ", "_")
        with busy_cores(given.busy):
            how = record(SCRIPTS[name], given.checkouts, run, stand_ins=given.stand_ins, ended=number % 2 == 1)
        print(f"\n{name} ({how})", *told(run), sep="\n    ", flush=True)


if __name__ == "__main__":
    main()
