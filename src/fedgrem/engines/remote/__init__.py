"""A fit whose sites are elsewhere, whoever carries the messages: it knows no network library."""
