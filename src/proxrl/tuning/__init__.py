"""Better settings by trial: `proxrl tune`."""
