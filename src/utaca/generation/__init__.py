"""What the pipeline decodes: trajectories and operating points."""
