"""Runs of the workflow: their config from its parts, their record, the command line, checks before the first job."""
