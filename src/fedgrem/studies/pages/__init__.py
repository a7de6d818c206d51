"""A finished study told: statistics over seeds, tables, claims with findings, figures, and one HTML page."""
