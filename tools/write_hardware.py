"""Write hardware.json from hardware.toml, or with --check tell whether it is current."""

import json
import sys
import tomllib
from dataclasses import asdict

from schema_page import ROOT, write_or_check

from stepscope.cost.chips import load_chips

_TABLE = ROOT / "src" / "stepscope" / "cost" / "hardware.toml"


def rows() -> str:
    """Return the table as JSON, one row a line; chips without what a row leaves open."""
    chips = [{field: value for field, value in asdict(row).items() if value is not None} for row in load_chips(_TABLE)]
    others = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    tables = {"chip": chips, "shared_name": others["shared_name"], "family": others["family"]}
    return "{" + ",\n".join(f'"{name}": [\n{_lines(table)}\n]' for name, table in tables.items()) + "}\n"


def _lines(table: list[dict[str, object]]) -> str:
    return ",\n".join(json.dumps(row) for row in table)


if __name__ == "__main__":
    made = str(_TABLE.with_suffix(".json").relative_to(ROOT))
    sys.exit(write_or_check(made, rows(), description=__doc__))
