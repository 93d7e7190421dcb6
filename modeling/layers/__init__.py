"""What papers change: the parts that models are made of."""
