"""The commit of the training script, from the files of its repository."""

import subprocess
from pathlib import Path

import pytest

from stepscope.record.helper.handover import source_commit

A, B = "a" * 40, "b" * 64


def repository(folder: Path, head: str, **refs: str) -> Path:
    git = folder / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text(head)
    for name, commit in refs.items():
        (git / "refs" / "heads").mkdir(parents=True, exist_ok=True)
        (git / "refs" / "heads" / name).write_text(commit + "\n")
    return folder


def test_branch_and_detached_head(tmp_path: Path) -> None:
    one = repository(tmp_path / "one", "ref: refs/heads/main\n", main=A)
    two = repository(tmp_path / "two", B + "\n")
    assert source_commit({}, str(one / "deep" / "train.py")) == A
    assert source_commit({}, str(two / "train.py")) == B


def test_packed_branch_and_worktree(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", "ref: refs/heads/gone\n")
    (main / ".git" / "packed-refs").write_text(f"# pack-refs\n{A} refs/heads/gone\n{B} refs/heads/work\n")
    assert source_commit({}, str(main / "train.py")) == A
    own = main / ".git" / "worktrees" / "w"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/work\n")
    (own / "commondir").write_text("../..\n")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / ".git").write_text(f"gitdir: {own}\n")
    assert source_commit({}, str(tmp_path / "w" / "train.py")) == B


def test_git_itself_agrees(tmp_path: Path) -> None:
    try:
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git here")
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    made = ["git", "-C", str(tmp_path), *who, "commit", "-q", "--allow-empty", "-m", "x", "--no-verify"]
    subprocess.run(made, check=True, capture_output=True)
    said = subprocess.run(["git", "-C", str(tmp_path), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert source_commit({}, str(tmp_path / "train.py")) == said.stdout.strip()
