"""Hyperparameter search: `proxrl tune`."""
