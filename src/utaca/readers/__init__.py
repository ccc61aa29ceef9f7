"""Readers: the language models that answer, their families, prompts and attention."""
