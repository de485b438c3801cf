"""Measuring the package itself: speed, and checkpoints against their published code."""
