"""The curve by which a number of components was chosen, on the screen."""

from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from fedgrem.cli.tables import plain_table
from fedgrem.report.selection import cell


def selection_table(found: dict[str, Any]) -> RenderableType:
    """One line per number of components, the chosen one marked."""
    titles = {"log_likelihood": "log-likelihood", "n_parameters": "parameters", "bic": "BIC", "icl": "ICL"}
    chosen = f"How many components: {found['chosen']}, by {found['criterion'].upper()} (the least is best)"
    table = plain_table(chosen, ["components", *titles.values(), "rounds", ""])
    for place, number in enumerate(found["n_components"]):
        cells = [cell(found[name][place]) for name in titles]
        cells += [str(found["rounds"][place]), "" if found["settled"][place] else "not settled"]
        mine = number == found["chosen"]
        table.add_row(Text(f"{number}{' *' if mine else ''}"), *cells, style="bold green" if mine else None)
    return table


def print_selection(found: dict[str, Any]) -> None:
    """Print on stdout, with an empty line below."""
    Console(highlight=False).print(selection_table(found), Text())
