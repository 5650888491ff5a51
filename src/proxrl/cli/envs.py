"""`proxrl envs`: the supported families of environments."""

from typing import Any

from proxrl.cli.parser import Parser

DESCRIPTION = "List the families of environments, with their presets and how to install them."


def add_arguments(parser: Parser) -> None:
    pass


def run(options: dict[str, Any]) -> int:  # noqa: ARG001 - every command takes its options
    from proxrl.envs.registry import families

    for family in families():
        status = "installed" if family.installed else f"pip install 'proxrl[{family.extra}]'"
        print(f"{family.title:<30} preset {family.preset:<11} {status}")
        print(f"    {'  '.join(family.examples)}")
    return 0
