"""A fit as one conversation between a center and its sites."""
