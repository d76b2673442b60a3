"""A configuration file as nested settings, and the line of each: TOML by the standard library, YAML by PyYAML."""

import re
import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from stepscope.errors import InputError, UsageError

_TOML_TABLE = re.compile(r"^\s*\[\s*([\w.\-\s]+?)\s*\]")
_TOML_KEY = re.compile(r"^\s*([\w\-]+(?:\s*\.\s*[\w\-]+)*)\s*=")


@dataclass(frozen=True)
class ConfigFile:
    """What a file says, and where."""

    path: str
    values: dict[str, Any]
    lines: dict[str, int]
    """dotted name -> line, from 1"""
    changed: frozenset[str] = frozenset()
    """settings that the command line changed"""

    def where(self, dotted: str) -> str:
        """Return where a setting was given: the file, its line where known, or `--set`."""
        if dotted in self.changed:
            return "--set"
        line = self.lines.get(dotted)
        return self.path if line is None else f"{self.path}, line {line}"


def read_config(path: str | Path) -> ConfigFile:
    """Return the file's content; its kind is its suffix."""
    file = Path(path)
    readers = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise UsageError(f"{path}: expected a configuration named *.toml, *.yaml or *.yml, found {file.name!r}")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: expected a configuration file, found: {reason}") from e
    values, lines = reader(text, str(path))
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected sections such as train and workload, found {values!r}")
    return ConfigFile(str(path), values, lines)


def _toml(text: str, path: str) -> tuple[Any, dict[str, int]]:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise InputError(f"{path}: expected TOML, found an error: {e}") from e
    return values, _toml_lines(text)


def _toml_lines(text: str) -> dict[str, int]:
    """Return the line of each table and key; one inside a text of several lines is not worth a parser."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TOML_TABLE.match(line):
            table = re.sub(r"\s", "", header.group(1))
            lines.setdefault(table, number)
        elif key := _TOML_KEY.match(line):
            name = re.sub(r"\s", "", key.group(1))
            lines.setdefault(f"{table}.{name}" if table else name, number)
    return lines


def _yaml(text: str, path: str) -> tuple[Any, dict[str, int]]:
    try:
        yaml = import_module("yaml")
    except ImportError as e:
        raise UsageError(
            f"{path}: reading YAML needs PyYAML, which is not installed here; pip install pyyaml, or write it as TOML"
        ) from e
    try:
        values = yaml.safe_load(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as e:
        raise InputError(f"{path}: expected YAML, found an error: {' '.join(str(e).split())}") from e
    return ({} if values is None else values), dict(_yaml_lines(root, ""))


def _yaml_lines(node: Any, prefix: str) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for key, value in node.value if node is not None and node.id == "mapping" else []:
        name = f"{prefix}{key.value}"
        found += [(name, key.start_mark.line + 1), *_yaml_lines(value, f"{name}.")]
    return found
