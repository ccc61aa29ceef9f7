"""Fictitious people, their facts, and the biographies that state them."""
