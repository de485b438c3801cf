"""Many clients, one model: an engine that takes a step of every request in one forward, and OpenAI's API over it."""
