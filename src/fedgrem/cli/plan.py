"""``fedgrem plan``: what federating would gain, before any data."""

from __future__ import annotations

from typing import Annotated

from rich.console import Console

from fedgrem.cli.options import examples, option
from fedgrem.cli.screen import plain_table


@examples(
    "fedgrem plan --sites 10 --rows 150 --columns 10 --components 5 --separation 3 --similarity 0.5 --bad 1",
    "fedgrem plan --sites 20 --rows 80 --components 3 --target 0.3",
)
def plan(
    sites: Annotated[int, option("K", "Sites, the bad ones among them.")] = 10,
    rows: Annotated[int, option("N", "Rows of every site.")] = 150,
    columns: Annotated[int, option("P", "Columns; of regressions, those that explain.")] = 10,
    components: Annotated[int, option("R", "Groups that the rows fall into.")] = 5,
    separation: Annotated[
        float, option("X", "Distance of the two closest groups, in standard deviations within one.")
    ] = 3.0,
    similarity: Annotated[
        float, option("H", "Distance of a site's group from what is common; 0 is all sites alike.")
    ] = 0.5,
    bad: Annotated[int, option("B", "Sites that are broken or hostile.")] = 0,
    regression: Annotated[bool, option(None, "Plan for a mixture of regressions.", "--regression")] = False,
    target: Annotated[
        float | None, option("E", "Largest error that is wanted.", default="half of what is expected")
    ] = None,
) -> None:
    """Say what federating would gain, before there are any data.

    Also how many rows or sites an error needs, how many bad sites can be afforded, and how many rounds it takes.
    Groups are drawn at random with weights as in the paper's simulations. Takes some seconds.
    """
    from fedgrem.theory import Design, sentences
    from fedgrem.theory import plan as make_plan

    design = Design(sites, rows, columns, components, separation, similarity, bad, "mor" if regression else "gmm")
    found = make_plan(design, target)
    budget = found.budget
    table = plain_table("Largest error to expect", ["", "error"])
    table.add_row("each site alone", f"{budget.alone:.2f}")
    table.add_row("federated", f"{budget.total:.2f}")
    for name, value in (
        ("of it: all rows together", budget.aggregation),
        ("own weights", budget.proportions),
        ("sites that differ", budget.heterogeneity),
        ("bad sites", budget.outliers),
    ):
        table.add_row(f"  {name}", f"{value:.2f}")
    console = Console(highlight=False)
    console.print(table)
    console.print()
    for line in sentences(found):
        console.print(line)
    console.print()
    assumptions = plain_table("Assumptions of the paper's theorems", ["", "holds", "why"], left=3)
    for check in found.checks:
        assumptions.add_row(check.name, "yes" if check.holds else "[yellow]no[/]", check.verdict)
    console.print(assumptions)
