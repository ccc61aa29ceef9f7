"""What the pipeline decodes: trajectories, operating points, replays of single decisions."""
