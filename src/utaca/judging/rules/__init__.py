"""The rules that write, label and score in place of a model: plain functions."""
