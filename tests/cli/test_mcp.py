"""`stepscope mcp`, driven over stdio by the client of the official package: every tool, wrong input, sizes, paths."""

import asyncio
import gzip
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.analyze.owners.owned_folder import owned_folder
from tests.limits import HANG_S
from tests.two_ranks import on_two_ranks

from stepscope.cli.main import main
from stepscope.cli.mcp import DEFAULT_BYTES, TOOLS, fitted

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra `mcp`")
pytest.importorskip("duckdb", reason="needs the extra `sql`")

DATA = Path(__file__).parent.parent / "data"
LATE_US = 400.0
Call = Callable[..., Awaitable[tuple[str, bool]]]
Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two runs, one with a late rank, of flight recorder dumps and of a memory snapshot."""
    folder = tmp_path_factory.mktemp("allowed")
    owned_folder(folder / "before", ranks=2, late_us=LATE_US)
    owned_folder(folder / "after", ranks=2)
    (folder / "dumps").mkdir()
    for dump in (DATA / "flight_recorder").glob("*.gz"):
        shutil.copy(dump, folder / "dumps")
    shutil.copy(DATA / "memory_snapshot" / "snapshot.pickle.gz", folder)
    return folder


def with_server(roots: list[Path], scenario: Callable[[Call], Awaitable[Any]], *options: str) -> Any:
    """Return what a scenario returns that may only call tools of a server of its own."""
    import mcp

    async def connected() -> Any:
        words = ["-m", "stepscope", "mcp", "--allow", *map(str, roots), *options]
        server = mcp.StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
        async with mcp.Client(mcp.stdio_client(server, errlog=sys.__stderr__)) as client:

            async def call(name: str, **arguments: Any) -> tuple[str, bool]:
                result = await client.call_tool(name, arguments)
                (content,) = result.content
                return content.text, bool(result.is_error)

            call.client = client  # type: ignore[attr-defined]
            return await scenario(call)

    return asyncio.run(connected())


def answers(roots: list[Path], calls: Calls, *options: str) -> list[tuple[str, bool]]:
    async def scenario(call: Call) -> list[tuple[str, bool]]:
        return [await call(name, **arguments) for name, arguments in calls]

    return with_server(roots, scenario, *options)


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from numbers(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from numbers(one, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


READING: Calls = [
    ("open_run", {"run": "before"}),
    ("report", {"run": "before"}),
    ("report", {"run": "before", "fields": ["findings.id,evidence,remedy"]}),
    ("code", {"run": "before"}),
    ("code", {"run": "before", "rank": 1, "fields": ["modules"]}),
    ("whatif", {"run": "before", "set": ["straggler=off"]}),
    ("whatif", {"run": "before", "without": ["train.py:10"], "ranks": "1"}),
    (
        "sql",
        {"run": "before", "query": "-- per rank\nSELECT rank, avg(dur_ns) AS mean FROM steps GROUP BY 1 ORDER BY 1"},
    ),
    ("compare", {"a": ["before"], "b": ["after"], "fail_on": ["step_ms>5%"]}),
    ("compare", {"a": ["before", "before"], "b": ["after", "after"]}),
    ("memory", {"run": "snapshot.pickle.gz"}),
    ("hang", {"dumps": "dumps"}),
]
OUR_OWN = {"full_bytes", "omitted"}


@pytest.mark.slow
def test_every_number_is_in_the_json_of_the_command_beside_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for (name, arguments), (text, is_error) in zip(READING, answers([runs], READING), strict=True):
        assert not is_error, (name, text)
        assert len(text.encode()) <= DEFAULT_BYTES
        answer = json.loads(text)
        assert main(shlex.split(answer["command"])[1:]) == 0, (name, arguments)
        document = json.loads(capsys.readouterr().out)
        known = set(numbers(document))
        shown = set(numbers({key: value for key, value in answer.items() if key not in OUR_OWN}))
        assert shown and shown <= known, (name, shown - known)


@pytest.mark.slow
def test_runs_and_tools_are_listed_with_their_arguments(runs: Path) -> None:
    async def scenario(call: Any) -> Any:
        listed = [json.loads((await call("open_run", **words))[0]) for words in ({}, {"run": "."})]
        return (await call.client.list_tools()).tools, listed

    found, (listed, inside) = with_server([runs], scenario)
    assert [Path(one).name for one in listed["runs"]] == ["after", "before"]
    assert listed["runs"] == inside["runs"] and listed["may_run"] is False
    tools = {tool.name: tool for tool in found}
    assert set(tools) == set(TOOLS) == {name for name, _ in READING} | {"record", "tune"}
    assert tools["whatif"].input_schema["required"] == ["run"]
    assert tools["code"].input_schema["properties"]["rank"]["minimum"] == 0
    for name, tool in tools.items():
        assert tool.description and tool.annotations.read_only_hint == (name not in ("record", "tune"))
        assert all(one["description"] for one in tool.input_schema["properties"].values())


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("report", {}, "'run' is a required property"),
    ("report", {"run": 3}, "run: 3 is not of type 'string'"),
    ("report", {"run": "before", "max_byte": 10}, "did you mean max_bytes?"),
    ("report", {"run": "before", "max_bytes": 10}, "max_bytes: 10 is less than the minimum of 1000"),
    ("report", {"run": "nowhere"}, "nowhere does not exist; open_run without arguments lists the runs"),
    ("whatif", {"run": "before"}, "give at least one --set"),
    ("whatif", {"run": "before", "set": "straggler=off"}, "set: 'straggler=off' is not of type 'array'"),
    ("sql", {"run": "before", "query": "SELEC 1"}, "the query failed"),
    ("sql", {"run": "before", "query": "SELECT * FROM read_csv('/etc/passwd')"}, "the query failed"),
    ("sql", {"run": "before", "query": f"SELECT '{'x' * 300_000}'"}, "too long for a command line"),
    ("sql", {"run": "before", "query": "SELECT 1", "limit": 10**9}, "is greater than the maximum of 100000"),
    ("hang", {"dumps": "before"}, "flight recorder"),
    ("memory", {"run": "before"}, "record with `stepscope record --memory`"),
    ("record", {"command": ["true"], "out": "new"}, "have the user run: stepscope record --out="),
    ("tune", {"command": ["true"], "out": "new"}, "--allow-run"),
    ("report", {"run": "/etc"}, "outside the allowed folders"),
    ("report", {"run": "../../../../../../../../etc/passwd"}, "outside the allowed folders"),
    ("report", {"run": "s3://bucket/run"}, "is an address; copy the run"),
    ("report", {"run": "bef\0ore"}, "does not match"),
    ("report", {"run": "before*"}, "does not exist"),
]


@pytest.mark.slow
def test_wrong_input_is_one_sentence_that_says_what_to_do(runs: Path) -> None:
    before = sorted(runs.rglob("*"))
    found = answers([runs], [(name, arguments) for name, arguments, _ in WRONG])
    for (name, arguments, expected), (text, is_error) in zip(WRONG, found, strict=True):
        assert is_error and expected in text and "\n" not in text, (name, arguments, text)
    assert sorted(runs.rglob("*")) == before


def spoiled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: spoiled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [spoiled(one) for one in value]
    return value + "\udcff" if isinstance(value, str) else value


def spoil(file: Path) -> None:
    """Append a lone surrogate to every string of a JSON file."""
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt") as f:
        lines = f.read().splitlines() if ".jsonl" in file.name else [f.read()]
    with opened(file, "wt") as f:
        f.writelines(json.dumps(spoiled(json.loads(line))) + "\n" for line in lines)


@pytest.mark.slow
def test_text_that_is_not_unicode_is_answered(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    for file in (*(tmp_path / "before").glob("*.json*"), *(tmp_path / "after").glob("run.json")):
        spoil(file)
    shutil.copytree(runs / "before", os.fsdecode(bytes(tmp_path) + b"/r\xff\xedx"))
    found = answers([tmp_path], [("open_run", {}), *READING])
    assert [Path(one).name for one in json.loads(found[0][0])["runs"]] == ["after", "before"]
    assert all("\n" not in text and "unexpectedly" not in text for text, _ in found)


@pytest.mark.slow
def test_malformed_requests_get_an_error(runs: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "stepscope", "mcp", "--allow", str(runs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    number = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"limit":{"9" * 5000}}}}}'
    said, _ = server.communicate("\n".join(["[" * 100_000, number, ""]), timeout=HANG_S)
    assert [json.loads(line)["error"]["code"] for line in said.splitlines()] == [-32700, -32700]
    assert server.returncode == 0


@pytest.mark.slow
def test_links_out_of_the_allowed_folders_are_refused(runs: Path, tmp_path: Path) -> None:
    allowed, secret = tmp_path / "allowed", tmp_path / "secret"
    shutil.copytree(runs / "before", secret)
    shutil.copytree(runs / "before", allowed / "run")
    trace = next((allowed / "run").glob("*.trace.json.gz"))
    (allowed / "linked").symlink_to(secret)
    (allowed / "mixed").mkdir()
    (allowed / "mixed" / trace.name).symlink_to(secret / trace.name)
    (allowed / "inside").mkdir()
    (allowed / "inside" / trace.name).symlink_to(trace)
    calls: Calls = [("report", {"run": name}) for name in ("linked", "mixed", "inside")]
    (linked, refused), (mixed, also_refused), (inside, is_error) = answers([allowed], calls)
    assert refused and "outside the allowed folders" in linked
    assert also_refused and f"{trace.name} links to a place outside" in mixed
    assert not is_error and "verdict" in inside


EVERY_EVENT: dict[str, Any] = {"run": "run", "query": "SELECT * FROM events", "limit": 100_000}
ABOUT_A_RUN: Calls = [
    *((name, {"run": "run"}) for name in ("open_run", "report", "code")),
    ("whatif", {"run": "run", "set": ["straggler=off"]}),
    ("compare", {"a": ["run"], "b": ["run"]}),
    ("sql", EVERY_EVENT),
]


@pytest.mark.slow
def test_answers_about_a_large_run_stay_small_unless_more_is_requested(tmp_path: Path) -> None:
    owned_folder(tmp_path / "run", ranks=24, late_us=LATE_US)
    calls: Calls = [
        *ABOUT_A_RUN,
        ("sql", {"run": "run", "query": "SELECT repeat('x', 1000000) AS long"}),
        ("sql", {**EVERY_EVENT, "max_bytes": 40_000}),
    ]
    found = answers([tmp_path], calls)
    assert not any(is_error for _, is_error in found)
    assert all(len(text.encode()) <= DEFAULT_BYTES for text, _ in found[:-1])
    small, large = (json.loads(found[i][0]) for i in (5, 7))
    every = [len(one["rows"]) + one["omitted"]["rows"] for one in (small, large)]
    assert every[0] == every[1] > 1000
    assert DEFAULT_BYTES < len(found[7][0].encode()) <= 40_000 and len(large["rows"]) > 10 * len(small["rows"])


_texts = st.text(max_size=300)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | _texts,
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.sampled_from("abcd"), inner),
    max_leaves=120,
)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from("abcdefgh"), st.lists(_values, max_size=40) | _texts), st.integers(1000, 5000))
def test_any_answer_fits_and_counts_what_it_leaves_out(answer: dict[str, Any], max_bytes: int) -> None:
    text = fitted(answer, max_bytes)
    assert len(text.encode()) <= max_bytes
    shown = json.loads(text)
    if "full_bytes" not in shown:
        assert shown == answer
        return
    for name, value in answer.items():
        if isinstance(value, list):
            assert len(shown[name]) + shown["omitted"].get(name, 0) == len(value)


def test_missing_package_and_folder_are_named(monkeypatch, capsys, tmp_path):
    assert main(["mcp", "--allow", str(tmp_path / "nowhere")]) == 2
    assert "nowhere does not exist; give an existing folder" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert main(["mcp", "--allow", str(tmp_path)]) == 2
    assert "pip install 'stepscope[mcp]'" in capsys.readouterr().err


def lasting_job(noted: Path) -> list[str]:
    """Return a command that notes its process id and lasts."""
    code = f"import os, time; open({str(noted)!r}, 'w').write(f'{{os.getpid()}} '); time.sleep({HANG_S})"
    return [sys.executable, "-c", code]


def is_noted(noted: Path) -> bool:
    return noted.exists() and noted.read_text().endswith(" ")


def wait_for_the_end(noted: Path) -> None:
    while Path(f"/proc/{noted.read_text().strip()}").exists():
        time.sleep(0.05)


@pytest.mark.job
def test_a_job_ends_with_its_call(tmp_path: Path) -> None:
    noted = tmp_path / "pid"

    async def scenario(call: Call) -> None:
        waiting = asyncio.ensure_future(call("record", command=lasting_job(noted), out="run"))
        while not is_noted(noted):
            assert not waiting.done()
            await asyncio.sleep(0.05)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(wait_for_the_end, noted)
        text, is_error = await call("open_run")
        assert not is_error and json.loads(text)["may_run"] is True

    with_server([tmp_path], scenario, "--allow-run")


@pytest.mark.job
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_server_and_job_while_the_connection_is_open(number: int, code: int, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    command = [sys.executable, "-m", "stepscope", "mcp", "--allow", str(tmp_path), "--allow-run"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin and server.stdout
        client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        job = {"name": "record", "arguments": {"command": lasting_job(noted), "out": "run"}}
        for message in (
            {"id": 1, "method": "initialize", "params": client},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": job},
        ):
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            server.stdin.flush()
        while not is_noted(noted):
            assert server.poll() is None
            time.sleep(0.05)
        server.send_signal(number)
        assert server.wait(HANG_S) == code
    wait_for_the_end(noted)


@pytest.mark.job
def test_a_job_that_fails_or_takes_too_long_is_an_error(tmp_path: Path) -> None:
    failing = [sys.executable, "-c", "print('no data found'); raise SystemExit(7)"]
    lasting = [sys.executable, "-c", f"import time; time.sleep({HANG_S})"]
    calls: Calls = [
        ("record", {"command": failing, "out": "a"}),
        ("record", {"command": lasting, "out": "b", "time_limit_s": 2}),
        ("record", {"command": [], "out": "c"}),
        ("record", {"command": failing, "out": "../c"}),
        ("record", {"command": failing, "out": "."}),
        ("tune", {"command": failing, "out": "d"}),
    ]
    found = answers([tmp_path], calls, "--allow-run")
    assert all(is_error for _, is_error in found)
    said = ["ended with code 7; its last output: no data found", "took over 2 s and was ended; raise time_limit_s"]
    said += ["command is empty", "outside the allowed folders", "already exists; give a new folder", "exit code 7"]
    for (text, _), expected in zip(found, said, strict=True):
        assert expected in text


@pytest.mark.job
def test_an_agent_with_nothing_but_the_tools_finds_line_and_rank_of_the_planted_fault(tmp_path: Path) -> None:
    """The job of `stepscope demo`, recorded by the server; longer sleeps, which a busy machine does not hide."""
    script = Path(__file__).parents[2] / "src" / "stepscope" / "demo_train.py"
    planted = next(n for n, line in enumerate(script.read_text().splitlines(), 1) if "time.sleep(" in line)
    job = on_two_ranks(script, "--steps", 30, "--slow-rank", 1, "--slow-ms", 500)

    async def agent(call: Call) -> tuple[str, int, list[int], float, float]:
        async def asked(name: str, **arguments: Any) -> Any:
            text, is_error = await call(name, **arguments)
            assert not is_error, text
            assert len(text.encode()) <= DEFAULT_BYTES
            return json.loads(text)

        run = (await asked("record", command=job, out="slow"))["run"]
        assert run in (await asked("open_run"))["runs"]
        first = (await asked("report", run=run, fields=["findings"]))["findings"][0]
        file, line = first["where"][0]["file"], first["where"][0]["line"]
        costs = {}
        for rank in (0, 1):
            rows = (await asked("code", run=run, rank=rank))["code"]
            costs[rank] = sum(row["host_ms"] for row in rows if (row["file"], row["line"]) == (file, line))
        fixed = await asked("whatif", run=run, without=[f"{file}:{line}"])
        return file, line, first["ranks"], costs[1] - costs[0], fixed["saving_ms"]

    file, line, ranks, extra_ms, saving_ms = with_server([tmp_path], agent, "--allow-run")
    assert (file, line, ranks) == (script.name, planted, [1])
    # of 500 ms: where others use the cores, the clock of several ranks runs slower by the share that they lost
    assert extra_ms > 200 and saving_ms > 150
