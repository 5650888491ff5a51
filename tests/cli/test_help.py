"""What `--help` prints."""

import re
from pathlib import Path

import pytest

import proxrl
from proxrl.cli import command_names, make_parser
from proxrl.cli.parser import Parser
from proxrl.config import Config


def test_spelling_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    parser = Parser("fly", "Fly somewhere.\n\n  proxrl fly home\n")
    parser.add_argument("to", metavar="PLACE", help="where to")
    parser.add_argument("over", metavar="PLACE", nargs="*")
    group = parser.add_group("wings")
    group.add_argument("--flap", action="store_true", help="flap (default off)")
    group.add_argument(
        "--kwargs", nargs="+", metavar="KEY=VALUE", help="what the wings are given before they are used (default none)"
    )
    group.add_argument("--kind", choices=["long", "broad"], help="form")
    assert parser.format_help() == (
        "usage: proxrl fly PLACE [PLACE ...] [flags]\n"
        "\n"
        "Fly somewhere.\n"
        "\n"
        "  proxrl fly home\n"
        "\n"
        "arguments:\n"
        "  PLACE                   where to\n"
        "  [PLACE ...]\n"
        "\n"
        "wings:\n"
        "  --flap                  flap (default off)\n"
        "  --kwargs KEY=VALUE ...  what the wings are given before\n"
        "                          they are used (default none)\n"
        "  --kind long|broad       form\n"
    )
    assert parser.flags() == ["--flap", "--kwargs", "--kind"]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", command_names())
def test_help_fits_the_terminal(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    parser = make_parser(name)
    text = parser.format_help()
    assert all(len(line) <= columns for line in text.partition("\n\n")[2].partition(":\n")[2].splitlines())
    assert all(len(line) <= 100 for line in str(parser.description).splitlines())
    spellings = text.replace("--[no-]", "--")
    assert all(re.search(rf"^  .*{flag}\b", spellings, re.M) for flag in parser.flags() if not flag.startswith("--no-"))


def test_every_setting_is_listed_under_a_heading() -> None:
    text = make_parser("train").format_help()
    headings = ["environment", "Atari games", "algorithm", "trust region", "optimizer", "normalization", "networks"]
    for heading in [*headings, "continuous actions", "run", "machine", "output"]:
        assert f"\n{heading}:\n" in text
    for name in Config.__dataclass_fields__:
        flag = name.replace("_", "-")
        assert name == "env" or f"--{flag}" in text or f"--[no-]{flag}" in text, name


def test_only_documented_parts_of_argparse_are_used() -> None:
    """A new version of Python may change anything whose name begins with an underscore."""
    source = Path(proxrl.__file__).parent
    for path in (*source.glob("cli/*.py"), *source.glob("config/*.py")):
        assert not re.findall(r"argparse\._\w+|\._actions|\._option_string_actions|super\(\)\._[a-z]\w+", path.read_text()), path
