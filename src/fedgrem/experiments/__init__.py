"""Studies: the paper's figures and tables as data, and one resumable runner for all of them."""
