"""What a component is, one file a family."""
