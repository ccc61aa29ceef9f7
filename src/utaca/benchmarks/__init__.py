"""How fast the parts are; no other package imports from here."""
