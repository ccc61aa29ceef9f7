"""Reporting: statistics over documents and seeds, tables beside the paper's figures, figures."""
