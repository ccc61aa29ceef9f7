"""What the pipeline decodes: trajectories, suites of operating points, replays of single decisions."""
