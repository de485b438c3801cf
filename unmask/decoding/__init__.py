"""Decoding: the canvas, the loop, the rules. It imports nothing else of the package but errors."""
