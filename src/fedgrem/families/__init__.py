"""Families: what a component is."""

from fedgrem.families.base import Family
from fedgrem.families.custom import Custom
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression

__all__ = ["Custom", "Family", "Gaussian", "LinearRegression"]
