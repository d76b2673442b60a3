"""What CUDA graphs capture, and the lines of compiled kernels (`--graphs`), for the lines of what they launch later.

Kernels of a graph have no operator when they run. So each capture is watched with Python frames, from before it begins
until after it ended; nothing of ours runs within it but the profiler's notes on the host. torch.cuda.graph,
make_graphed_callables and the graph trees of torch.compile all go through `CUDAGraph.capture_begin`.

    rank00000.capture.0.pt.trace.json.gz     the launches, in the order of the graph's nodes
    rank00000.capture.0.owners.json.gz       the lines and modules of its operators
    rank00000.inductor.json                  by compiled graph: kernel -> lines that it was made of

The compiler keeps lines of kernels only where it was asked to before it compiled (INDUCTOR_PROVENANCE).
"""

import gzip
import json
import os
import re
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.autograd.profiler as doors

from stepscope.contract.run_folder import CAPTURE, INDUCTOR, owners_file, rank_file
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain, say
from stepscope.record.hooks.patches import Patches, after_import
from stepscope.record.owners.frame_step import owners_of
from stepscope.record.window.kineto import activities_of, why_not_available

_MAX_CAPTURES = 64
_REPLAY = "CUDAGraph.replay"
_STACKS = "inductor_provenance_tracking_kernel_stack_traces"
_FRAME = re.compile(r'File "([^"]{1,500})", line (\d{1,9}), in (\S{1,200})')


class GraphCaptures:
    """A sampler that watches captures; each failure ends the watching and not the capture."""

    def __init__(self, config: RecordConfig) -> None:
        self._config = config
        self._pid = os.getpid()
        self._profiler: Any = None
        self._num_seen = 0
        self._files: list[tuple[int, bytes, dict[str, Any]]] = []
        self._kernels: list[dict[str, list[list[Any]]]] = []
        self._patches = Patches()
        self._why_not = why_not_available()
        os.environ.setdefault("INDUCTOR_PROVENANCE", "1")
        watched = {"capture_begin": self._before, "capture_end": self._after, "replay": _marked}
        for name, make in watched.items():
            self._patches.replace(torch.cuda.CUDAGraph, name, make)
        after_import("torch._inductor.compile_fx", self._watch_compiler)

    def after_window(self, folder: str | Path, rank: int) -> None:
        """Write what was captured and compiled until now."""
        for number, trace, owners in self._files:
            of = f"{CAPTURE}{number}."
            (Path(folder) / rank_file(rank, f"{of}pt.trace.json.gz")).write_bytes(trace)
            text = json.dumps({**owners, "rank": rank}, separators=(",", ":"))
            (Path(folder) / owners_file(rank, of=of)).write_bytes(gzip.compress(text.encode(), 5))
        self._files = []
        if self._kernels:
            (Path(folder) / rank_file(rank, INDUCTOR)).write_text(json.dumps(self._kernels))

    def on_close(self, folder: str | Path, rank: int) -> None:
        self._patches.undo()
        self.after_window(folder, rank)
        _made.clear()

    def _before(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(graph: Any, *args: Any, **named: Any) -> Any:
            self._guarded(self._start)
            try:
                return original(graph, *args, **named)
            except BaseException:
                self._guarded(self._stop)
                raise

        return begin

    def _after(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end(graph: Any, *args: Any, **named: Any) -> Any:
            try:
                return original(graph, *args, **named)
            finally:
                self._guarded(self._stop)

        return end

    def _start(self) -> None:
        is_ours = self._profiler is None and os.getpid() == self._pid and self._num_seen < _MAX_CAPTURES
        if not is_ours or self._why_not is not None or torch.autograd._profiler_enabled():
            return
        device = "cuda" if torch.profiler.ProfilerActivity.CUDA in activities_of(self._config) else None
        profiler = torch.autograd.profiler.profile(use_cpu=True, use_device=device, use_kineto=True, with_stack=True)
        profiler._prepare_trace()
        self._profiler = profiler
        profiler._start_trace()
        self._mark = torch.profiler.record_function(f"ProfilerStep#{self._num_seen}")
        self._mark.__enter__()

    def _stop(self) -> None:
        if self._profiler is None:
            return
        self._mark.__exit__(None, None, None)
        results = doors._disable_profiler()  # through the door that the recorder's guard watches
        self._profiler = None
        number, self._num_seen = self._num_seen, self._num_seen + 1
        with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
            path = Path(folder) / "capture.json"
            results.save(str(path))
            trace = gzip.compress(path.read_bytes(), 1)
        owners, _ = owners_of(results, step=number, rank=0, model=None, max_events=self._config.max_events)
        self._files.append((number, trace, dict(owners)))

    def _watch_compiler(self) -> None:
        compiler: Any = __import__("torch._inductor.compile_fx", fromlist=["trace_structured"])
        self._patches.replace(compiler, "trace_structured", self._noted)

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(kind: str, *args: Any, **named: Any) -> Any:
            self._guarded(lambda: self._note(named))
            return original(kind, *args, **named)

        return noted

    def _note(self, named: dict[str, Any]) -> None:
        about, payload = named.get("metadata_fn"), named.get("payload_fn")
        if about is None or payload is None or about().get("name") != _STACKS:
            return
        kernels = json.loads(payload())
        self._kernels.append(
            {name: [_FRAME.findall(stack)[-1:] for stack in stacks][:32] for name, stacks in kernels.items()}
        )

    def _guarded(self, act: Callable[[], None]) -> None:
        if self._why_not is not None:
            return
        try:
            act()
        except Exception as e:  # noqa: BLE001 - the capture and the compiler come first
            self._why_not = explain(e)
            if self._profiler is not None and torch.autograd._profiler_enabled():
                doors._disable_profiler()
            self._profiler = None
            say(f"captures of CUDA graphs are no longer watched: {self._why_not}")


def _marked(original: Callable[..., Any]) -> Callable[..., Any]:
    """Record each replay as an operator, which identifies the launching line; torch has none for it."""

    def replay(graph: Any) -> None:
        is_recorded = torch.autograd._profiler_enabled()
        with torch._C._profiler._RecordFunctionFast(_REPLAY) if is_recorded else nullcontext():
            original(graph)

    return replay


_made: list[GraphCaptures] = []


def graph_captures(config: RecordConfig) -> GraphCaptures:
    """Return the sampler of this process, which is made before its recorder: graphs are captured early."""
    if not _made:
        _made.append(GraphCaptures(config))
    return _made[0]
