"""CSV of Nsight Compute: real files, every form, both locales, damaged ones."""

import csv
import io
from pathlib import Path

import pytest

from stepscope.errors import InputError
from stepscope.trace.ncu import is_ncu_csv, read_ncu_csv

DATA = Path(__file__).parents[2] / "data" / "ncu-h200"
OLD = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream",
       "Section Name", "Metric Name", "Metric Unit", "Metric Value")  # fmt: skip
NEW = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
       "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value")  # fmt: skip


def written(path: Path, *rows: tuple[str, ...], before: str = "") -> Path:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    path.write_text(before + text.getvalue())
    return path


def new_row(metric: str, unit: str, value: str, *, launch: str = "0", name: str = "gemm") -> tuple[str, ...]:
    return launch, "7", "python", "h", name, "1", "7", "(128, 1, 1)", "(64, 2, 1)", "0", "9.0", "S", metric, unit, value


def test_real_wide_file_gives_what_the_tool_shows() -> None:
    read = read_ncu_csv(DATA / "wide.csv")
    assert (len(read.launches), read.unusable) == (8, 0)
    product, relu, add, softmax = read.launches[:4]
    assert product.name == "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
    assert (product.grid, product.block, product.device) == ((2, 64, 1), (384, 1, 1), 0)
    assert (product.occupancy_pct, product.sm_pct, product.dram_pct, product.tensor_pct) == (14.18, 75.0, 5.3, 84.31)
    assert product.duration_ns == 33_056
    assert add.tensor_pct == 0.0 and add.stalls[0][0] == "long_scoreboard"
    assert sum(share for _, share in relu.stalls) == pytest.approx(1)
    assert add.dram_bytes == pytest.approx(36_045_568)
    assert softmax.stalls[0][0] == "wait"


def test_real_long_file_gives_the_same_launches() -> None:
    wide, long = read_ncu_csv(DATA / "wide.csv"), read_ncu_csv(DATA / "long.csv")
    assert [(x.name, x.grid, x.block) for x in long.launches] == [(x.name, x.grid, x.block) for x in wide.launches]
    for one, other in zip(long.launches, wide.launches, strict=True):
        assert one.occupancy_pct == pytest.approx(other.occupancy_pct, rel=0.05)
        assert one.dram_pct == pytest.approx(other.dram_pct, rel=0.05)
        assert one.duration_ns == pytest.approx(other.duration_ns, rel=0.07)
        assert one.stalls == ()


def test_old_form_without_block_and_grid(tmp_path: Path) -> None:
    row = ("0", "7", "python", "h", "gemm", "12:00", "1", "7", "SpeedOfLight", "SOL SM", "%", "71.25")
    duration = (*row[:9], "Duration", "usecond", "1,234.50")
    (launch,) = read_ncu_csv(written(tmp_path / "x.csv", OLD, row, duration, before="==PROF== Connected\n")).launches
    assert (launch.grid, launch.sm_pct, launch.duration_ns) == (None, 71.25, 1_234_500.0)


def test_decimal_commas(tmp_path: Path) -> None:
    rows = (new_row("Achieved Occupancy", "%", "12,34"), new_row("Duration", "nsecond", "1.234"))
    (launch,) = read_ncu_csv(written(tmp_path / "x.csv", NEW, *rows)).launches
    assert (launch.occupancy_pct, launch.duration_ns) == (12.34, 1234.0)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", '"ID","Other"\n"0","1"\n', "==PROF== nothing\n"])
def test_other_files_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    assert not is_ncu_csv(text.encode())
    with pytest.raises(InputError) as error:
        read_ncu_csv(path)
    assert "\n" not in str(error.value)
