"""The uncertainty detector, its training, the logit baselines and their metrics (paper, section 3.1, appendix B)."""
