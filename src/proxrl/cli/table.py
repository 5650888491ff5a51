"""Tables as wide as the terminal; in a pipe, as wide as their content."""

import sys
from collections.abc import Sequence

from proxrl.errors import printable


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """Print a table; the columns named in `numbers` are right-aligned."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    rows = [list(map(printable, row)) for row in rows]
    for column in columns:
        table.add_column(printable(column), justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    # In a pipe, rich would wrap lines at 80 columns.
    width = (
        None
        if sys.stdout.isatty()
        else 10 + sum(max(len(cell) for cell in column) + 2 for column in zip(columns, *rows, strict=True))
    )
    Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False).print(table)
