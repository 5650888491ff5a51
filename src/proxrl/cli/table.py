"""Columns for a person: as wide as the terminal, or as wide as they are in a pipe."""

import sys
from collections.abc import Sequence


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """`numbers` names the columns that are set to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    # A pipe has no width, and rich would break the lines at 80.
    width = (
        None
        if sys.stdout.isatty()
        else 10 + sum(max(len(cell) for cell in column) + 2 for column in zip(columns, *rows, strict=True))
    )
    Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False).print(table)
