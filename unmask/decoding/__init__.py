"""Decoding: the canvas, the loop, the rules. It imports nothing else from the package but errors."""
