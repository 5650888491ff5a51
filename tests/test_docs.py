"""Everything that the documentation names exists, and its text keeps the rules of style."""

import dataclasses
import re
from pathlib import Path

import pytest

from proxrl.cli import command_names, make_parser
from proxrl.config import Config

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
)


def test_all_code_and_tests_in_details_exist() -> None:
    rows = [line for line in (ROOT / "docs/details.md").read_text().splitlines() if line.startswith("|")]
    names = 0
    for row in rows:
        file = None
        for word in re.findall(r"`([^`]+)`", row):
            if word.endswith(".py"):
                file = (ROOT if word.startswith("tests/") else ROOT / "src/proxrl") / word
                assert file.exists(), word
            elif file is not None:
                name = word.rpartition(".")[2]
                assert re.search(rf"(def|class) {name}\b", file.read_text()), f"{name} is not in {file}"
                names += 1
    assert names > 40


# Flags of pip and of launchers that the pages mention.
OTHERS = {"--constraint", "--nproc-per-node", "--nnodes", "--max-restarts", "--local-addr", "--kill-on-bad-exit", "--mpi"}
OTHERS |= {"--rdzv-backend", "--rdzv-id", "--rdzv-endpoint", "--rdzv-conf", "--bind-to", "--oversubscribe", "--hostfile"}
OTHERS |= {"--prtemca", "--nodes", "--ntasks", "--ntasks-per-node", "--cpus-per-task"}
# Of other libraries, in examples.
OTHERS |= {"--vf-coef", "--ent-coef", "--env-id", "--total-timesteps", "--num-steps", "--update-epochs", "--track", "--file"}
OTHERS |= {"--train"}
# Of benchmarks.
OTHERS |= {"--processor-time"}


def test_details_are_listed_by_number() -> None:
    text = (ROOT / "docs/details.md").read_text()
    for heading, count in (
        ("13 core details", 13),
        ("9 details for continuous actions", 9),
        ("9 details for Atari", 9),
        ("5 details for LSTM policies", 5),
    ):
        section = text.split(f"## {heading}")[1].split("\n## ")[0]
        assert re.findall(r"^\| (\d+) \|", section, re.M) == [str(n) for n in range(1, count + 1)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_flag_in_the_documentation_exists(page: Path) -> None:
    parsers = map(make_parser, command_names())
    known = {flag for parser in parsers for flag in parser.flags()} | {"--version"}
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*[a-z])", page.read_text()))
    assert named <= known | OTHERS


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_local_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if "://" not in target:
            linked = page.parent / target if target else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_placeholder_is_left(page: Path) -> None:
    assert not re.search(r"^[A-Z_]{6,}$", page.read_text(), re.M)


def prose(text: str) -> list[str]:
    """Return the lines of a page without tables, code blocks, HTML comments, and lines that are a single link or image."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = "\n\n".join(
        part for part in re.split(r"\n{2,}", text) if not all(line.startswith("    ") for line in part.splitlines())
    )
    link = r"\W*!?\[[^\]]*\]\([^)]*\)\W*"
    return [line for line in text.splitlines() if not line.startswith("|") and not re.fullmatch(link, line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_wrap_at_100_columns(page: Path) -> None:
    assert [line for line in prose(page.read_text()) if len(line) > 100] == []


def test_the_wrapping_test_reads_prose_only() -> None:
    code = "```\ncode\n```\n\n    code\n    code\n\n"
    text = f"a\n{code}| table |\n<!-- one\ntwo -->\n- [link](page.md)\n![image](a.svg)\nsee [link](b.md)"
    assert [line for line in prose(text) if line] == ["a", "see [link](b.md)"]


STEMS = "normal|optim|initial|vector|general|penal|summar|minim|maxim|random|regular|real|organ|recogn|synchron|serial|visual"
WORDS = r"learnt|spoilt|colour|behaviour|neighbour|favour|honour|centre|licence|\bgrey|labell|modell|cancell|travell|artefact"
BRITISH = re.compile(rf"({STEMS})is(e|ed|es|er|ers|ing|ation|ations)\b|{WORDS}", re.IGNORECASE)
SUFFIXES = {".py", ".md", ".toml", ".js", ".css", ".html"}


def test_spelling_is_american() -> None:
    """In code, comments, documentation and the report page. Figures and tables of published results are not ours to spell."""
    roots = [ROOT / name for name in ("src", "docs", "examples", "tests", "benchmarks")]
    files = [path for root in roots for path in root.rglob("*") if path.is_file() and path.suffix in SUFFIXES]
    files += [path for path in ROOT.iterdir() if path.suffix in (".md", ".toml") or path.name in ("Makefile", "LICENSE")]
    british = {
        f"{path.relative_to(ROOT)}:{number}": line.strip()
        for path in files
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BRITISH.search(line)
    }
    assert british == {}


def test_the_spelling_test_finds_british_words() -> None:
    for word in (
        "normalised",
        "Optimiser",
        "vectorising",
        "Generalisation",
        "learnt",
        "colour",
        "neighbouring",
        "licence",
        "grey",
    ):
        assert BRITISH.search(word), word
    for word in ("normalized", "promise", "learned", "precise", "raise", "exercise", "otherwise", "revised", "optimistic"):
        assert not BRITISH.search(word), word


def test_every_setting_has_a_help_text() -> None:
    assert all(spec.metadata["help"] for spec in dataclasses.fields(Config))
