"""What methods are made of: their interface, and how those read that read by full attention or by a small cache."""
