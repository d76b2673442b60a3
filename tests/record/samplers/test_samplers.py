"""NCCL's log of a rank."""

import os

from stepscope.record.nccl_log import NcclLog, log_of_process


def test_nccl_writes_one_file_per_process_which_becomes_the_ranks_log(tmp_path):
    environ: dict[str, str] = {}
    log = NcclLog(environ=environ)
    assert environ["NCCL_DEBUG"] == "INFO"
    assert "COLL" in environ["NCCL_DEBUG_SUBSYS"].split(",")
    written = log_of_process(environ["NCCL_DEBUG_FILE"], pid=os.getpid())
    written.write_text("host:1:1 [0] NCCL INFO Channel 00/02 : 0 1\n")
    log.after_window(tmp_path, 3)
    assert (tmp_path / "rank00003.nccl.log").read_text().endswith(": 0 1\n")
    with written.open("a") as f:
        f.write("more\n")
    log.on_close(tmp_path, 3)
    assert (tmp_path / "rank00003.nccl.log").read_text().endswith("more\n")
    assert not written.parent.exists()


def test_what_the_user_set_is_kept_and_said(tmp_path, capsys):
    theirs = tmp_path / f"mine.{os.getpid()}.txt"
    theirs.write_text("NCCL WARN\n")
    environ = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": str(tmp_path / "mine.%p.txt")}
    log = NcclLog(environ=environ)
    assert environ["NCCL_DEBUG"] == "WARN"
    (run := tmp_path / "run").mkdir()
    log.on_close(run, 0)
    assert (run / "rank00000.nccl.log").read_text() == "NCCL WARN\n"
    assert theirs.exists()
    assert "NCCL_DEBUG=WARN is already set" in capsys.readouterr().err
