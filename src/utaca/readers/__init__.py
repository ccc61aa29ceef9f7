"""Readers: the language models that answer, their prompts and their signals."""
