"""The shape of the source tree: imports point downwards, names are unique, functions stay short."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "proxrl"

# From top to bottom: a module imports only from those below its own line, or from its own package.
ORDER = [
    ["__main__"],
    ["cli"],
    ["tuning", "many_runs", "bench"],
    ["jobs"],
    ["export"],
    ["report"],
    ["launch"],
    ["run_texts"],
    ["look"],
    ["build"],
    ["ppo"],
    ["session"],
    ["collect"],
    ["engine"],
    ["bonus"],
    ["policy"],
    ["check"],
    ["callback", "log"],
    ["runs"],
    ["config"],
    ["envs"],
    ["world"],
    ["common"],
    ["types"],
    ["errors"],
]
LEVEL = {package: level for level, packages in enumerate(ORDER) for package in packages}
FILES = sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    """The packages of proxrl that a file imports at run time, at its top or within a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "proxrl":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("proxrl."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("proxrl."))
        yield from imports(node)


def test_every_package_has_its_place() -> None:
    found = {package_of(path) for path in FILES} - {"__init__"}
    assert found == set(LEVEL)


def test_imports_point_downwards() -> None:
    upwards = [
        f"{path.relative_to(SOURCE)} imports {imported}"
        for path in FILES
        if package_of(path) != "__init__"
        for imported in imports(ast.parse(path.read_text()))
        if imported in LEVEL and imported != package_of(path) and LEVEL[imported] <= LEVEL[package_of(path)]
    ]
    assert upwards == []


def test_the_import_test_sees_imports_within_functions() -> None:
    tree = ast.parse(
        "def f():\n    from proxrl.cli import main\n    import proxrl.ppo\nif TYPE_CHECKING:\n    import proxrl.build"
    )
    assert list(imports(tree)) == ["cli", "ppo"]


@pytest.mark.parametrize(
    "statement",
    [
        "import proxrl.config, proxrl.config.parse, proxrl.config.resolve, proxrl.config.flags",
        "from proxrl.cli import main; main(['--help'])",
        "from proxrl.cli import main; main(['train', 'CartPole-v1', '--print-config'])",
        "from proxrl.cli import main; main(['train', 'CartPole-v1', '--seeds', '1', '2', '--print-config'])",
        "import proxrl.many_runs.run",
        "from proxrl.cli import command_names, make_parser; [make_parser(name).format_help() for name in command_names()]",
    ],
)
def test_settings_and_help_do_not_wait_for_torch(statement: str, tmp_path: Path) -> None:
    code = f"import sys\n{statement}\nassert 'torch' not in sys.modules, 'torch was imported'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_no_package_has_the_name_of_an_exported_function() -> None:
    import proxrl

    assert not set(proxrl.__all__) & set(LEVEL)


def test_no_class_name_exists_twice() -> None:
    names = Counter(
        node.name for path in FILES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield f"{path.relative_to(SOURCE)}:{node.name}", node


def test_no_function_is_longer_than_sixty_lines() -> None:
    long = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions()}
    assert {name: lines for name, lines in long.items() if lines > 60} == {}


# There the flat list of arguments is the interface: what users write, or a contract with named columns.
FLAT_INTERFACES = {
    "envs/registry.py:make_environments",
    "launch.py:train",
    "tuning/run.py:tune",
    "look/evaluation.py:evaluate",
    "look/recording.py:record",
    "look/window.py:play",
    "config/fields.py:setting",
}


def test_no_function_takes_more_than_eight_arguments() -> None:
    counts = {
        name: len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
        - any(argument.arg in ("self", "cls") for argument in node.args.args[:1])
        for name, node in functions()
    }
    assert {name: count for name, count in counts.items() if count > 8 and name not in FLAT_INTERFACES} == {}


def test_the_readme_shows_every_folder() -> None:
    readme = (SOURCE.parent.parent / "README.md").read_text()
    tree = readme.split("## The tree")[1].split("\n## ")[0]
    shown = {line.split()[0].removesuffix("/").removesuffix(".py") for line in tree.splitlines() if line.startswith("  ")}
    assert set(LEVEL) - {"__main__"} <= shown
