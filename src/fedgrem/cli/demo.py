"""``fedgrem demo``: a simulated federation with one hostile site, and what working together is worth."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table

from fedgrem.cli.files import check_picture, check_writable
from fedgrem.cli.options import estimator, examples, option
from fedgrem.cli.screen import notice, plain_table, progress_bar, warnings_as_notices

if TYPE_CHECKING:
    from fedgrem.data.simulate import Simulation
    from fedgrem.types import Array

SITE_COLUMN = "hospital"
PLOT = Path("fedgrem-demo.png")


@examples(
    "fedgrem demo",
    "fedgrem demo --h 2 --seed 7 --out different-sites.png",
    "fedgrem demo --data demo.csv",
)
def demo(
    h: Annotated[float, option("X", "How much the honest sites differ from each other.", "--h", least=0.0)] = 0.5,
    seed: Annotated[int, option("N", "Of the simulation and of the fit.", least=0)] = 0,
    out: Annotated[Path, option("FILE", "Where to save the plot: .png, .pdf or .svg.", "--out", "-o")] = Path(
        "fedgrem-demo.png"
    ),
    data: Annotated[
        Path | None, option("FILE", "Also write the simulated rows as CSV, to try `fedgrem fit` on.")
    ] = None,
) -> None:
    """Simulate ten sites, one of them hostile, and compare FedGrEM with fitting each site alone.

    The simulation is the paper's: 150 rows a site in 10 dimensions, 5 components. Nine sites differ from the common
    centers by --h; the tenth sends rows from somewhere else.
    """
    check_picture(out)
    if data is not None:
        check_writable(data)

    from fedgrem.data.simulate import simulate

    simulation = simulate("gmm", h=h, seed=seed)
    if data is not None:
        _write_rows(simulation, data)
    together, alone = (
        _fitted(simulation, name, penalty, seed) for name, penalty in (("FedGrEM", "auto"), ("Alone", 0.0))
    )
    fits = {"fitting alone": alone, "FedGrEM": together}
    errors = {name: simulation.errors(one.weights_, one.means_)[1] for name, one in fits.items()}
    console = Console(highlight=False)
    console.print(_table(together, errors, simulation.honest))
    console.print()
    console.print(_sentence(together, errors, simulation.honest))
    saved = _save_plot(together, errors, h, out)
    if saved:
        console.print(f"Plot: {out}")
    if data is not None:
        console.print(
            f"Rows: {data}; try: fedgrem fit {data} --site {SITE_COLUMN} --components {simulation.theta.shape[1]} "
            "--out model/",
            soft_wrap=True,
        )


def _fitted(simulation: Simulation, name: str, penalty: float | str, seed: int) -> Any:
    options = {"n_components": simulation.theta.shape[1], "covariance_type": "identity", "penalty": penalty}
    model = estimator(options | {"random_state": seed}, regression=False)
    with warnings_as_notices(), progress_bar(f"{name:8}", model.tol) as tell:
        return model.fit(simulation.rows, on_progress=tell)


def _table(model: Any, errors: dict[str, Array], honest: Array) -> Table:
    table = plain_table(
        "Largest error over a site's components", ["site", "alone", "FedGrEM", "change", "distance from center"]
    )
    farthest = model.site_distance_.max(axis=1)
    for k, name in enumerate(model.site_names_):
        before, after = (error[k] for error in errors.values())
        if honest[k]:
            change = after / before - 1.0
            style = "green" if change < 0 else "yellow"
            told = f"[{style}]{change:+.0%}[/]"
            table.add_row(str(name), f"{before:.2f}", f"{after:.2f}", told, f"{farthest[k]:.2f}")
        else:
            table.add_row(f"{name} (hostile)", "-", "-", "-", f"{farthest[k]:.2f}", style="bold red")
    return table


def _sentence(model: Any, errors: dict[str, Array], honest: Array) -> str:
    before, after = (float(error[honest].max()) for error in errors.values())
    change = after / before - 1.0
    verb = "lowers" if change < 0 else "raises"
    better = int((errors["FedGrEM"] < errors["fitting alone"])[honest].sum())
    farthest = model.site_distance_.max(axis=1)
    return (
        f"Over the {honest.sum()} honest sites FedGrEM {verb} the largest error from {before:.2f} to {after:.2f} "
        f"({change:+.0%}), and {better} of them gain; the hostile site was left {farthest[~honest].max():.1f} away "
        f"from the center, the honest ones at most {farthest[honest].max():.1f}."
    )


def _save_plot(model: Any, errors: dict[str, Array], h: float, out: Path) -> bool:
    from fedgrem.errors import MissingExtraError
    from fedgrem.plots import demo_figure

    title = f"Nine honest sites (h = {h:g}) and a hostile one"
    try:
        demo_figure(model, errors, title).savefig(out)
    except MissingExtraError as error:
        notice(f"no plot: {error}")
        return False
    return True


def _write_rows(simulation: Simulation, path: Path) -> None:
    n_features = simulation.theta.shape[2]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([SITE_COLUMN, *(f"x{j}" for j in range(n_features))])
        for name, rows in simulation.rows.items():
            writer.writerows([name, *(f"{value:.17g}" for value in row)] for row in rows)
