"""Bases of the methods: their interface, and the reading of a document by full attention or through a small cache."""
