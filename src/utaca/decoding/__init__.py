"""Decoding under a fixed or an adaptive block budget (paper, section 3.2 and algorithm 1)."""
