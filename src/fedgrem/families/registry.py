"""The families by name: what a site agrees to fit. A user's own density is code, and code does not travel."""

from typing import Any

from fedgrem.families.gaussian import Gaussian
from fedgrem.families.generalized import GeneralizedRegression
from fedgrem.families.poisson import Poisson
from fedgrem.families.regression import LinearRegression
from fedgrem.families.table import Table

FAMILIES: dict[str, Any] = {
    family.name: family for family in (Gaussian, LinearRegression, Poisson, Table, GeneralizedRegression)
}
"""name -> class; every row runs through the conformance tests."""
