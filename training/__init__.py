"""Trainings that make what the project ships; the package does not need them."""
