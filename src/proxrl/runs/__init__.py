"""Run folders: their files and locks, checkpoints, metrics and status, and how runs are found."""
