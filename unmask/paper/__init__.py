"""The paper's numbers, experiments and claims, and what the bundled model shows of them."""
