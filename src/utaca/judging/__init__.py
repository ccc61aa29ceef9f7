"""Judging: token labels of trajectories, conceptual accuracy (CAS) and string match of answers."""
