"""What decoding looks like: traces, replay, live terminal, figures."""
