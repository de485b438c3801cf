"""The rules a method is made of, each a frozen dataclass."""
