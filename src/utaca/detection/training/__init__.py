"""What only the training and the evaluation of detectors need (paper, appendix "Training Details")."""
