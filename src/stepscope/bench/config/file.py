"""A configuration file as nested settings, and the line of each: TOML by the standard library, YAML by PyYAML."""

import re
import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from stepscope.errors import InputError, UsageError
from stepscope.side_file import read_side_text

_MAX_CONFIG_BYTES = 1 << 20
_MAX_DEPTH = 50
# in a YAML file: aliases of aliases multiply
_MAX_ALIASES = 64

_TOML_TABLE = re.compile(r"^\s*\[\s*([\w.\-\s]+?)\s*\]")
_TOML_KEY = re.compile(r"^\s*([\w\-]+(?:\s*\.\s*[\w\-]+)*)\s*=")


@dataclass(frozen=True)
class ConfigFile:
    """What a file says, and where."""

    path: str
    values: dict[str, Any]
    #: dotted name -> line, from 1
    lines: dict[str, int]
    #: settings that the command line changed
    changed: frozenset[str] = frozenset()

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
        raise UsageError(f"{path}: a configuration is named *.toml, *.yaml or *.yml, not {file.name!r}")
    try:
        text = read_side_text(file, max_bytes=_MAX_CONFIG_BYTES)
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: cannot be read as a configuration: {reason}") from e
    try:
        values, lines = reader(text, str(path))
        if not isinstance(values, dict):
            raise InputError(f"{path}: has to hold sections such as train and workload, not {values!r}")
        _refuse_odd_names(values, str(path))
    except RecursionError as e:
        raise InputError(f"{path}: its values are nested too deeply; write it flatter") from e
    return ConfigFile(str(path), values, lines)


def _refuse_odd_names(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise InputError(f"{path}: {name!r} is no name of a setting; put it in quotes, or correct it")
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _refuse_odd_names(below, path)


def _toml(text: str, path: str) -> tuple[Any, dict[str, int]]:
    try:
        values = tomllib.loads(text)
    except ValueError as e:  # also a number of thousands of digits
        raise InputError(f"{path}: is not TOML: {e}") from e
    return values, _toml_lines(text)


def _toml_lines(text: str) -> dict[str, int]:
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
            f"{path}: reading YAML needs PyYAML: pip install 'stepscope[yaml]', or write it as TOML"
        ) from e
    try:
        aliases = _aliases(yaml, text, path)
        if aliases > _MAX_ALIASES:
            raise InputError(f"{path}: has {aliases} aliases, and at most {_MAX_ALIASES} are read; write them out")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if aliases and _expanded(root) > _MAX_CONFIG_BYTES:
            raise InputError(f"{path}: its aliases multiply to more than {_MAX_CONFIG_BYTES:,} values; write them out")
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as e:  # also numbers and dates that are none
        raise InputError(f"{path}: is not YAML: {' '.join(str(e).split())}") from e
    return ({} if values is None else values), dict(_yaml_lines(root, ""))


def _aliases(yaml: Any, text: str, path: str) -> int:
    """Return how many aliases a document has; an `InputError` at the first value that lies too deep.

    The parser's own time grows with the square of the depth, so nothing below it is looked at.
    """
    aliases = depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        aliases += isinstance(event, yaml.AliasEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            where = f"{path}, line {event.start_mark.line + 1}"
            raise InputError(f"{where}: settings lie more than {_MAX_DEPTH} levels deep; write it flatter")
    return aliases


def _expanded(root: Any) -> int:
    counts: dict[int, int] = {}
    inside: set[int] = set()

    def count(node: Any) -> int:
        if id(node) in inside:
            return _MAX_CONFIG_BYTES + 1
        if id(node) not in counts:
            inside.add(id(node))
            below = [n for pair in node.value for n in pair] if node.id == "mapping" else node.value
            counts[id(node)] = 1 + (sum(map(count, below)) if node.id != "scalar" else 0)
            inside.discard(id(node))
        return counts[id(node)]

    return count(root) if root is not None else 0


def _yaml_lines(node: Any, prefix: str) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for key, value in node.value if node is not None and node.id == "mapping" else []:
        name = f"{prefix}{key.value}"
        found += [(name, key.start_mark.line + 1), *_yaml_lines(value, f"{name}.")]
    return found
