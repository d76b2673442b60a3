"""`calibrate` and `predict` as users type them."""

import json
from pathlib import Path

import pytest
from tests.diagnose.late import late_run

from stepscope.cli.main import main

DATA = Path(__file__).parents[2] / "data" / "nccl_collectives"
SHAPE = {"layers": 12, "d-model": 1024, "heads": 16, "vocab": 32768, "positions": 1024, "seq-len": 1024}
MODEL = ["--norm-bias", *(text for name, value in SHAPE.items() for text in (f"--{name}", str(value)))]


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibration") / "calibration.json"
    plot = path.with_suffix(".svg")
    given = ["--from-csv", str(DATA / "collectives_w4_half.csv"), "--out", str(path), "--plot", str(plot)]
    assert main(["calibrate", *given]) == 0
    assert plot.read_text().startswith("<svg") and "all_to_all" in plot.read_text()
    return path


def asked(capsys, *arguments):
    code = main(["predict", *map(str, arguments), "--json", "-"])
    out = capsys.readouterr()
    return json.loads(out.out) if code == 0 else (code, out.err)


def test_one_size_gives_an_object_and_several_a_list(calibration, capsys):
    base = ["collective", "--calibration", calibration, "--op", "all_reduce", "--world-size", 4]
    one = asked(capsys, *base, "--bytes", 2048)
    many = asked(capsys, *base, "--bytes", 2048, "8KiB", "--bytes", "1MB")
    assert one["low_us"] < one["time_us"] < one["high_us"]
    assert [row["bytes"] for row in many] == [2048, 8192, 1_000_000] and many[0] == one
    assert main(["predict", *map(str, base), "--bytes", "2048"]) == 0 and "all_reduce" in capsys.readouterr().out


def test_links_stand_in_for_a_calibration(capsys):
    base = ["collective", "--op", "all_reduce", "--bytes", "1GB", "--world-size", 64]
    found = asked(capsys, *base, "--link", "50:5", "--node-link", "400:2")
    assert found["low_us"] is None and found["reason"] and found["algorithm"] in found["algorithms_us"]
    assert asked(capsys, *base)[0] == 2


def test_flops_of_a_gpt(capsys):
    found = asked(capsys, "flops", *MODEL, "--tokens-per-step", 8192, "--recompute", "full")
    assert found["parameters"] == 219_203_584
    assert found["model_flops_per_step"] == 3 * (12 * (24 * 1024**2 + 4 * 1024**2) + 2 * 32768 * 1024) * 8192
    assert found["hardware_flops_per_step"] * 3 == found["model_flops_per_step"] * 4


def test_mfu_of_a_bare_step_time(tmp_path, capsys):
    found = asked(capsys, "mfu", "--step-ms", 500, "--flops-per-step", 1.8e15, "--peak-tflops", 900, "--devices", 8)
    assert found["mfu"] == pytest.approx(0.5) and found["hfu"] == found["mfu"]
    assert found["tflops_per_device"] == pytest.approx(450)
    model = asked(
        capsys, "mfu", "--step-ms", 100, *MODEL, "--tokens-per-step", 8192, "--recompute", "full", "--device", "H200"
    )
    flops = 3 * (12 * (24 * 1024**2 + 4 * 1024**2) + 2 * 32768 * 1024) * 8192
    assert model["mfu"] == pytest.approx(flops / 0.1 / 989.5e12, rel=0.001)
    assert model["hfu"] == pytest.approx(4 / 3 * model["mfu"]) and model["tokens_per_s"] == 81_920
    page = tmp_path / "mfu.html"
    words = ["predict", "mfu", "--step-ms", "500", "--flops-per-step", "1e15", "--peak-tflops", "900"]
    assert main([*words, "--html", str(page)]) == 0 and "MFU" in page.read_text()
    assert "MFU 222.2 %" in " ".join(capsys.readouterr().out.split())
    for missing, said in ((["--device", "H200"], "--flops-per-step"), (["--flops-per-step", "1e12"], "--device")):
        assert main(["predict", "mfu", "--step-ms", "5", *missing]) == 2
        assert said in capsys.readouterr().err


def test_memory_by_category_and_whether_it_fits(capsys):
    base = ["memory", *MODEL, "--fused-qkv", "--micro-batch", 8, "--fused-optimizer", "--device", "H200"]
    found = asked(capsys, *base)
    assert found["peak_bytes"] == pytest.approx(9.97e9, rel=0.02) and found["fits"] is True
    assert sum(found["peak"].values()) == pytest.approx(found["peak_bytes"], abs=10)
    assert asked(capsys, *base, "--memory-gib", 8)["fits"] is False


def test_strategy_names_the_simple_rule_and_what_was_assumed(capsys):
    found = asked(capsys, "strategy", *MODEL, "--sequences", 256, "--world-size", 16, "--device", "H200")
    assert found["simple_rule"]["strategy"] == "ddp" and found["recommended"]["mfu"] <= 0.5
    assert len(found["assumed"]) == 3 and found["candidates"][0] == found["fastest"]
    assert found["recommended"]["strategy"] == "ddp" and found["no_difference"] is True


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["flops", "--layers", "2", "--seq-len", "8"], "the model lacks --d-model"),
        (["memory", *MODEL, "--device", "Quantum9"], "not in the hardware table"),
        (["memory", *MODEL, "--data", "4", "--expert", "3"], "expert ranks have to divide"),
        (["strategy", *MODEL, "--sequences", "8", "--world-size", "8"], "--device NAME"),
    ],
)
def test_nonsense_ends_in_one_line_and_code_2(arguments, said, capsys):
    code, error = asked(capsys, *arguments)
    assert code == 2 and said in error and error.count("\n") == 1


def test_scale_of_a_recorded_run(tmp_path, capsys):
    late_run(tmp_path / "run", late_us=0)
    found = asked(capsys, "scale", tmp_path / "run", "--world-size", 64)
    assert found["recorded"]["world_size"] == 4 and found["curve"][-1]["world_size"] == 16384
    assert [row["world_size"] for row in found["asked"]] == [64]
    assert found["asked"][0]["low_ms"] < found["asked"][0]["step_ms"] < found["asked"][0]["high_ms"]
    slow = asked(capsys, "scale", tmp_path / "run", "--world-size", 64, "--link", "0.1:50")
    assert slow["asked"][0]["step_ms"] > found["asked"][0]["step_ms"]
    assert (
        main(["predict", "scale", str(tmp_path / "run")]) == 0 and "run at other world sizes" in capsys.readouterr().out
    )


@pytest.mark.job
def test_calibration_of_this_machine(tmp_path, capsys):
    pytest.importorskip("torch")
    out = tmp_path / "calibration.json"
    given = ["--backend", "gloo", "--world-size", "2", "--limit-s", "2", "--max-bytes", "64KiB", "--out", str(out)]
    assert main(["calibrate", *given]) == 0
    found = json.loads(out.read_text())
    assert found["backend"] == "gloo" and found["software"]["torch"] and found["machine"]["cpus"]
    assert {c["op"] for c in found["curves"]} >= {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
    capsys.readouterr()
    predicted = asked(
        capsys, "collective", "--calibration", out, "--op", "all_reduce", "--bytes", 4096, "--world-size", 2
    )
    assert predicted["time_us"] > 0
