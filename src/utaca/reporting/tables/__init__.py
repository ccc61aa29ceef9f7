"""The tables and figures of a run, a function each; :mod:`utaca.reporting.registry` lists what this folder declares."""
