"""Training and evaluation of detectors (paper, appendix "Training Details")."""
