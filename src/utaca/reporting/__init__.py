"""Reporting: statistics over documents and seeds, tables with the paper's figures for reference, and figures."""
