"""The curve by which a number of components was chosen, on the screen."""

from typing import Any

from fedgrem.cli.tables import print_text
from fedgrem.report.summary import selection_text


def print_selection(found: dict[str, Any]) -> None:
    """Print on stdout, with an empty line below."""
    print_text(selection_text(found) + "\n")
