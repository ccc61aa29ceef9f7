"""Pages on which people look at what endpoints decided, and the samples that they are shown."""
