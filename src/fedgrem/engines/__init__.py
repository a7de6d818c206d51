"""Who carries messages to the sites."""
