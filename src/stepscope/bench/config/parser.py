"""A command's parser whose defaults come from `--config FILE` and `--set KEY=VALUE`; flags win, wherever they stand."""

import argparse
from collections.abc import Sequence
from typing import Any


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config FILE` and `--set section.name=value`."""
    parser.add_argument("--config", metavar="FILE", help="settings in TOML or YAML; flags change them")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[],
        help="change one setting, such as train.lr=0.01; may be repeated",
    )  # fmt: skip


class ConfiguredParser(argparse.ArgumentParser):
    """Takes the plain flags that it has from the configuration; `workload_options` come with them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        add_config_arguments(self)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Return what argparse returns, after a first look for the configuration."""
        look = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        look.error = self.error  # type: ignore[method-assign]  # which says it in one line
        add_config_arguments(look)
        given, _ = look.parse_known_args(args)
        if given.config is not None or given.overrides:
            from stepscope.bench.config.settings import (
                config_from,
                flags_from,  # not for --help, which it would slow
            )

            known = {action.dest for action in self._actions}
            flags = flags_from(given.config, given.overrides)
            self.set_defaults(**{flag: value for flag, value in flags.items() if flag in known})
            self.set_defaults(workload_options=config_from(given.config, given.overrides).workload.options)
        return super().parse_known_args(args, namespace)
