"""Secrets leave no recording; ordinary training options stay as they are."""

import time

import pytest

from stepscope.contract.redaction import REDACTED, redacted

SECRET = "s3cr3t/Value-1"


@pytest.mark.parametrize(
    "words",
    [
        ["--hf-token", SECRET],
        [f"--hub_token={SECRET}"],
        ["--token", "12345678"],
        [f"--password={SECRET}"],
        ["--api-key", SECRET],
        ["--apiKey", SECRET],
        [f"--wandb-apikey={SECRET}"],
        ["--client-secret", SECRET],
        ["--aws_access_key_id", SECRET],
        [f"+logger.wandb.api_key={SECRET}"],
        [f"HF_TOKEN={SECRET}"],
        [f"SLURM_JWT={SECRET}"],
        ["--data", f"https://me:{SECRET.replace('/', '%2F')}@host/x"],
        ["--data", f"s3://bucket/x?X-Amz-Signature={SECRET}"],
        [f"--endpoint=http://host:4318/v1?key={SECRET}#{SECRET}"],
        [f"postgresql+psycopg://me:{SECRET.replace('/', '')}@host/runs,redis://me:{SECRET.replace('/', '')}@host"],
        ["bash", "-c", f"HF_TOKEN={SECRET} python train.py --lr 0.1"],
        ["bash", "-c", f"python train.py --hf-token {SECRET} --lr 0.1"],
        ["bash", "-c", f"python train.py --password '{SECRET} and more' --lr 0.1"],
        ["python", "-c", f"api_key = '{SECRET}'; train()"],
        ["--config", f'{{"lr": 0.1, "api_key": "{SECRET}", "layers": 2}}'],
        ["--header", f"Authorization: Bearer {SECRET}"],
        ["-p", SECRET],
        ["--pw", SECRET],
        ["-u", f"me:{SECRET}"],
        [f"--proxy-user=me:{SECRET}"],
        ["bash", "-c", f"curl -u me:{SECRET} host && python train.py --lr 0.1"],
        ["--pat", SECRET],
        ["--sas", f"?sv=1&sig={SECRET}"],
        ["positional", f"?sv=1&sig={SECRET}"],
        [f"--query=sv=1&X-Amz-Signature={SECRET}"],
        ["positional", "hf_" + 3 * "AbCdEfGh12"],
        ["positional", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"],
    ],
)
def test_secret_of_a_command_line_is_redacted(words: list[str]) -> None:
    found = " ".join(redacted([*words, "--lr", "0.1"]))
    for part in (SECRET, SECRET.replace("/", ""), "Value-1", "and more", "12345678", "AbCdEfGh", "c2lnbmF0dXJl"):
        assert part not in found
    assert found.endswith("--lr 0.1")
    assert redacted(redacted(words)) == redacted(words)


@pytest.mark.parametrize(
    "option",
    [
        "--tokenizer gpt2", "--max-tokens 512", "--num-key-value-heads 8", "--key-dim 64", "--image-key jpg",
        "--sort-key=length", "--pad-token <pad>", "--eos_token_id=2", "--user-token <|user|>", "--use-auth-token True",
        "--use-auth-token --lr 0.1", "--author me", "-p 8080", "-p 127.0.0.1:8080:80", "dropout.p=0.1", "-u train.py",
        "--user 1000:1000", "--pattern x", "--compass north", "--secretless=false", "model.tokenizer=bpe",
        "NCCL_IB_PKEY=0", "TOKENIZERS_PARALLELISM=false", "--data s3://bucket/train",
        "--master http://node1:4318/v1/metrics", "--rdzv-endpoint=node1:29500", "--lr=1e-4 optim.betas=[0.9,0.95]",
    ],
)  # fmt: skip
def test_ordinary_training_option_stays(option: str) -> None:
    words = option.split()
    assert redacted(words) == words
    assert redacted(option) == option


def test_variables_and_settings_are_redacted_by_name() -> None:
    found = redacted({"SLURM_JWT": "x", "SLURM_JOB_ID": "7", "steps": 3, "proxy": "http://me:pw@host:4318?k=v"})
    assert found == {"SLURM_JWT": REDACTED, "SLURM_JOB_ID": "7", "steps": 3, "proxy": "http://host:4318"}


@pytest.mark.parametrize("text", ["a" * 200_000, "-" * 200_000, "a=" * 100_000, "a://" * 50_000, '"' * 200_000])
def test_long_word_is_redacted_in_linear_time(text: str) -> None:
    began = time.process_time()
    redacted([text])
    assert time.process_time() - began < 5  # quadratic would take minutes
