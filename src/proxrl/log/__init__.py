"""Loggers and displays: where the numbers of a run go."""
