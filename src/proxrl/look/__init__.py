"""Looking at a trained policy: load, evaluate, render, record and play."""
