"""Benchmarks of other domains than the biographies, task by task, under their own prompts, lengths and scores."""
