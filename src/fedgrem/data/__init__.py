"""Where rows come from: federations, files, simulations."""
