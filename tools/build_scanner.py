"""Build `scanner.wasm` from its C source, or with --check tell whether the committed one is what the source gives.

The compiler is the pinned `ziglang` wheel. The same source gives the same bytes on every machine: no paths, no
dates, no debug information go into the module.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCANNER = Path(__file__).resolve().parent.parent / "src" / "stepscope" / "trace" / "scanner"
FLAGS = [
    "-target", "wasm32-freestanding", "-std=c11", "-Os", "-msimd128", "-mbulk-memory", "-nostdlib",
    "-fno-ident", "-Wall", "-Wextra", "-Werror", "-Wl,--no-entry", "-s",
]  # fmt: skip


def build(target: Path) -> None:
    """Compile the scanner to `target`; what the compiler caches goes to a temporary folder."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        command = [sys.executable, "-m", "ziglang", "cc", *FLAGS, "-o", str(target), "scanner.c"]
        subprocess.run(command, cwd=SCANNER, env=environment, check=True)
    target.chmod(0o644)


def is_current() -> bool:
    """Return whether the committed module equals a fresh build."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "scanner.wasm"
        build(fresh)
        return fresh.read_bytes() == (SCANNER / "scanner.wasm").read_bytes()


def main() -> int:
    """Build or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if not parser.parse_args().check:
        build(SCANNER / "scanner.wasm")
        print(f"built {(SCANNER / 'scanner.wasm').stat().st_size} bytes")
        return 0
    if is_current():
        print("scanner.wasm is what its source gives")
        return 0
    print("scanner.wasm differs from what its source gives: run tools/build_scanner.py and commit", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
