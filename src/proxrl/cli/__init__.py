"""The command line. `dispatch` selects the command; each command has a file of its own, which defines its flags and runs it."""

from proxrl.cli.dispatch import command_names, main, make_parser

__all__ = ["command_names", "main", "make_parser"]
