"""The uncertainty detector (paper, section 3.1, appendix B); :mod:`.training` makes and measures it."""
