"""The paper's theorem as a tool: what to expect of a fit, before it and after it, and whether its assumptions hold."""

from fedgrem.theory.budget import ErrorBudget, Quantities
from fedgrem.theory.checks import Check, Setting, check_assumptions
from fedgrem.theory.design import Design
from fedgrem.theory.plan import Plan, plan, sentences
from fedgrem.theory.predict import Prediction, predict

__all__ = [
    "Check",
    "Design",
    "ErrorBudget",
    "Plan",
    "Prediction",
    "Quantities",
    "Setting",
    "check_assumptions",
    "plan",
    "predict",
    "sentences",
]
