"""What the paper reports: its tables over the step size, and those of its studies on real data, from ``paper.txt``."""

from importlib.resources import files

from fedgrem.studies.base import Stat


def _read() -> dict[str, dict[float, dict[str, Stat]]]:
    """Table -> the number that a line begins with -> the head of a column -> what is printed."""
    text = files("fedgrem.studies").joinpath("paper.txt").read_text(encoding="utf-8")
    tables: dict[str, dict[float, dict[str, Stat]]] = {}
    for part in text.split("\n\n")[1:]:
        (name, *columns), *lines = ([cell.strip() for cell in line.split("|")] for line in part.strip().splitlines())
        n = 100 if name in ("weight_error", "theta_error") else 200
        tables[name] = {}
        for first, *cells in lines:
            printed = (map(float, cell.strip(")").split(" (")) for cell in cells)
            stats = [Stat(mean, sd, n) for mean, sd in printed]
            tables[name][float(first)] = dict(zip(columns, stats, strict=True))
    return tables


TABLES = _read()
"""``weight_error`` and ``theta_error``: FedGrEM's, by C_eta and h; the caption says of the weights "in log scale", but
they are plain. ``misclustered pen`` and the like: on held-out rows in percent, by percent of contaminated sites and
method, without FedGMM. ``seconds pen`` and the like: of a fit in R, on a single core of a Xeon Gold 6226R."""


def reported(table: str, line: float, column: float | str) -> Stat | None:
    """What a table says there, if it does."""
    head = column if isinstance(column, str) else f"{column:g}"
    return TABLES[table].get(round(line, 2), {}).get(head)


def beside(ours: Stat, told: Stat | None, digits: int) -> str:
    """Ours, and below it the paper's; a dash where it prints none."""
    return f"{ours.text(digits)}\n{told.text(digits) if told else '—'}"
