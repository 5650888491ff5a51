"""The command line. `dispatch` reads the command; each command has a file of its name with its flags and the call it makes."""

from proxrl.cli.dispatch import command_names, main, make_parser

__all__ = ["command_names", "main", "make_parser"]
