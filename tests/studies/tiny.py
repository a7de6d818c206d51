"""A study small enough for a test."""

from fedgrem.studies.base import Method, Setting, Study
from fedgrem.studies.comparison import page

SIMULATION = {"h": 0.5, "n_sites": 3, "n_rows": 40}


def tiny_study(n_seeds=3, methods=("local-em", "fedem"), **setting):
    settings = (Setting("h=0.5", "gmm", 0.5, SIMULATION, **setting),)
    return Study("gmm", "A tiny study", settings, tuple(Method(m, m) for m in methods), n_seeds, page)
