"""How well a reader reads: cells of documents and questions, its answers to them, and what each answer scores."""
