"""What the documentation names must exist."""

import dataclasses
import re
from pathlib import Path

import pytest

from proxrl.cli import command_names, make_parser
from proxrl.config import Config

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def test_every_place_and_test_in_details_exists() -> None:
    rows = [line for line in (ROOT / "docs/details.md").read_text().splitlines() if line.startswith("|")]
    found = 0
    for row in rows:
        file = None
        for word in re.findall(r"`([^`]+)`", row):
            if word.endswith(".py"):
                file = (ROOT if word.startswith("tests/") else ROOT / "src/proxrl") / word
                assert file.exists(), word
            elif file is not None:
                name = word.rpartition(".")[2]
                assert re.search(rf"(def|class) {name}\b", file.read_text()), f"{name} is not in {file}"
                found += 1
    assert found > 40


# Flags of pip and of launchers that the pages name.
OTHERS = {"--constraint", "--nproc-per-node", "--nnodes", "--max-restarts", "--local-addr", "--kill-on-bad-exit", "--mpi"}
OTHERS |= {"--rdzv-backend", "--rdzv-id", "--rdzv-endpoint", "--rdzv-conf"}
OTHERS |= {
    "--bind-to",
    "--oversubscribe",
    "--hostfile",
    "--prtemca",
    "--nodes",
    "--ntasks",
    "--ntasks-per-node",
    "--cpus-per-task",
}


def test_every_core_and_continuous_detail_is_listed() -> None:
    text = (ROOT / "docs/details.md").read_text()
    for heading, count in (("13 core details", 13), ("9 details for continuous actions", 9), ("9 details for Atari", 9)):
        section = text.split(f"## {heading}")[1].split("\n## ")[0]
        assert re.findall(r"^\| (\d+) \|", section, re.M) == [str(n) for n in range(1, count + 1)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_flag_in_the_documentation_exists(page: Path) -> None:
    parsers = map(make_parser, command_names())
    known = {flag for parser in parsers for flag in parser.flags()} | {"--version"}
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*[a-z])", page.read_text()))
    assert named <= known | OTHERS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_local_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_placeholder_is_left(page: Path) -> None:
    assert not re.search(r"^[A-Z_]{6,}$", page.read_text(), re.M)


def test_every_setting_has_a_help_text() -> None:
    assert all(spec.metadata["help"] for spec in dataclasses.fields(Config))
