"""Models: the architectures, the Model that the rest of the package sees, and whatever makes logits."""
