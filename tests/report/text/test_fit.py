"""Tables on a terminal of 80 columns: the key column and every name stay whole, and what is left out is said."""

import io
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stepscope.cli.doctor import Check, print_checks_table
from stepscope.cost.calibration import calibrate
from stepscope.cost.measured_collectives import points_from_csv
from stepscope.diagnose.checks import COLUMNS, RankHealth
from stepscope.report.terminal import PlainConsole, plain_table, print_fitting
from stepscope.report.text.bench import print_bench, print_calibration
from stepscope.report.text.code import MIN_SOURCE_WIDTH, Columns
from stepscope.report.text.health import print_rank_health
from stepscope.report.text.tables import print_answer
from stepscope.tables.sql import Answer

WIDTH = 80
CSV = Path(__file__).parents[2] / "data" / "nccl_collectives" / "collectives_w4_half.csv"


def terminal(width: int = WIDTH, *, pipe: bool = False) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return PlainConsole(file=file, width=width, highlight=False, soft_wrap=pipe, safe_box=True), file


def lines_of(file: io.StringIO) -> list[str]:
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= WIDTH, lines
    assert not any("…" in line or "..." in line for line in lines), lines
    return lines


def table_of(out: Console, *titles: str) -> Table:
    table = plain_table(out, *titles)
    table.add_row("the_name_of_the_row", *("123456.78" for _ in titles[1:]))
    return table


def test_titles_are_broken_before_a_column_is_left_out() -> None:
    out, file = terminal(62)
    print_fitting(table_of(out, "name", "forward_pass", "backward_pass", "x"), out, least_needed=("x",))
    assert "forward_" in file.getvalue() and "backward_" in file.getvalue()
    assert "not shown" not in file.getvalue()


def test_least_needed_columns_go_first_and_are_named() -> None:
    out, file = terminal(48)
    print_fitting(table_of(out, "name", "a", "b", "c"), out, least_needed=("b", "a", "c"))
    said = file.getvalue()
    assert "not shown for width: b; a wider terminal or --json shows all" in " ".join(said.split())
    assert "the_name_of_the_row" in said and said.count("123456.78") == 2


def test_pipe_gets_all_columns() -> None:
    out, file = terminal(20, pipe=True)
    print_fitting(table_of(out, "name", "a", "b", "c"), out, least_needed=("b", "a", "c"))
    assert "not shown" not in file.getvalue()


def test_doctor_keeps_names_and_long_paths() -> None:
    out, file = terminal()
    path = "/a/rather/long/place/for/virtual/environments/" + "x" * 40 + "/bin/torchrun"
    print_checks_table([Check("torchrun", True, False, path, "starts distributed jobs")], out)
    assert "torchrun" in lines_of(file)[2]
    assert path in "".join(line[19:].strip() for line in lines_of(file)[2:-1])


def test_health_keeps_ranks_and_who_is_late() -> None:
    out, file = terminal()
    rows = [RankHealth(r, None, 123_456_789, dict.fromkeys(COLUMNS, 12.3), 12_000_000, "data loading") for r in (0, 63)]
    print_rank_health(rows, out)
    assert lines_of(file)[-2 if "not shown" in lines_of(file)[-1] else -1].startswith("63 ")
    assert "12.00 data loading" in file.getvalue()


def test_calibration_keeps_operations_latency_and_bandwidth() -> None:
    out, file = terminal()
    print_calibration(calibrate(points_from_csv(CSV)), out)
    assert any(line.startswith("reduce_scatter ") for line in lines_of(file))


def test_bench_keeps_names_and_medians() -> None:
    out, file = terminal()
    name = "fully_sharded_data_parallel_v2"
    numbers = ("throughput_samples_per_sec", "tokens_per_sec", "comm_ms_per_step", "exposed_comm_ms_per_step")
    more = ("overlap_pct", "overlap_efficiency", "peak_memory_allocated_gb", "peak_memory_reserved_gb", "final_loss")
    summary = dict.fromkeys((*numbers, *more, "min_step_time", "max_step_time"), 1234.5)
    samples = [[100.0 + i % 3 for i in range(20)] for _ in range(3)]
    rows = [{"name": n, "config": {}, "samples_ms": samples, "summary": summary} for n in ("pytorch_ddp", name)]
    print_bench({"environment": {}, "series": rows}, out)
    assert sum(line.startswith(f"{name} ") for line in lines_of(file)) == 2


def test_answer_keeps_its_first_columns_and_says_how_to_get_all() -> None:
    out, file = terminal()
    columns = ("rank", "name", *(f"number_{i}_ns" for i in range(9)))
    print_answer(Answer(columns, iter([(3, "ncclDevKernel_AllReduce", *([1_794_782_332_093_000_000] * 9))])), out)
    lines = lines_of(file)
    assert any(line.split()[:2] == ["3", "ncclDevKernel_AllReduce"] for line in lines)
    assert "number_8_ns" in file.getvalue() and "--csv -" in file.getvalue()


def test_source_keeps_half_of_a_narrow_terminal() -> None:
    each = ("device", "bwd", "host", "comm", "expos", "step", "saves")
    columns = Columns(tuple((title, lambda row: 1.0) for title in each))
    kept, gone = columns.within(WIDTH - MIN_SOURCE_WIDTH)
    assert gone == ("bwd", "expos") and len(kept.head("line")) == WIDTH - MIN_SOURCE_WIDTH
    assert columns.within(WIDTH - MIN_SOURCE_WIDTH, needed="expos")[1] == ("bwd", "comm")
    assert columns.within(200) == (columns, ())
