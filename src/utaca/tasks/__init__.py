"""Benchmarks, task by task, under their own prompts, lengths and scores, and biographies that people wrote."""
