"""Maths: arrays in, arrays out."""
