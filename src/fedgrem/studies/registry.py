"""Every study of ``fedgrem reproduce``, by name. Light: the shell reads the names before anything is imported."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedgrem.studies.base import Study

STUDIES = {
    "gmm": "comparison",
    "mor": "comparison",
    "eta": "step_size",
    "theory": "theory",
    "sizes": "sizes",
    "pen": "real",
    "pen-small": "few_rows",
    "mnist": "real",
    "fashion": "real",
    "attacks": "attacks",
    "discussion": "discussion",
}
"""Name -> the file with a function of this name, which is told whether the study is to be quick."""


def find_study(name: str, quick: bool = False) -> "Study":
    """The study of this name, full or quick."""
    module = import_module(f"fedgrem.studies.{STUDIES[name]}")
    make: Callable[[bool], Study] = getattr(module, name.replace("-", "_"))
    return make(quick)
