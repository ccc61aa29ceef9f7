"""The reader card: how well a reader reads what no training of it contained, beside the bars it is held to."""
