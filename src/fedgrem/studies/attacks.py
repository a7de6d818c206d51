"""Past the paper, ``attacks``: what bad sites can do, and how the default and the field's center rules stand it."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgrem.plots.axes import new_figure
from fedgrem.report.text import name_of
from fedgrem.studies.base import Method, Page, Results, Setting, Study, Table, Verdict, stressed
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NONE = "none"
ALONE = Method("alone", "fedgrem", {}, 0.0)
"""Every site fitted alone: what sharing must never be worse than."""
OURS = Method("fedgrem", "fedgrem", {}, None)
"""With default options: no fit is told how many sites are bad."""
RULES = ("median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "centered-clipping")
TRIED = (
    NONE, "far", "columns", "common-shift", "merged", "sign-flip", "noise", "alie", "ipm", "min-max", "mimic", "labels",
    "collapse", "edge", "edge-scattered", "sleeper", "worst-shift", "poisoned-starts", "rows-1e6", "gains-strong",
    "edge-loud", "edge-gains", "alie-loud", "chaos",
)  # fmt: skip
BARS = {0.0: {0.1: 1.2, 0.2: 1.5, 0.3: 2.0}, 1.0: {0.1: 1.1, 0.2: 1.15, 0.3: 1.3}}
"""h -> share of bad sites -> by what factor the worst attack may raise the error: about what the best of the field
reach that are told how many sites are bad."""
SLACK = 1.05
"""Over fitting alone."""
FACTS = {"data": "the paper's simulation without its outlier site: 150 rows each, 5 components in 10 dimensions"}


def attacks(quick: bool = False) -> Study:
    """Attack x share of bad sites x h x K, by our default, the field's rules, and these after mixing."""
    tried = (NONE, "common-shift", "alie", "edge-loud") if quick else TRIED
    shares = (0.1, 0.3) if quick else (0.1, 0.2, 0.3, 0.4)
    settings = tuple(
        setting(attack, share, h, n_sites)
        for n_sites, h, share, attack in product((10,) if quick else (10, 20), (0.0, 1.0), shares, tried)
    )
    rules = ("median", "multi-krum") if quick else ("mean", *RULES)
    mixed = ("trimmed-mean",) if quick else RULES
    methods = (OURS, ALONE, *(rule(name) for name in rules), *(rule(name, mixing=True) for name in mixed))
    return Study("attacks", "Bad sites", settings, methods, 2 if quick else 20, page)


def setting(attack: str, share: float, h: float, n_sites: int) -> Setting:
    """One attack of one cell."""
    cell = f"K={n_sites} h={h:g} {share:.0%}"
    told: dict[str, Any] = {"attack": attack, "share": share, "h": h, "n_sites": n_sites}
    return Setting(f"{cell} {attack}", "gmm", share, told, cell, start="own")


def rule(name: str, *, mixing: bool = False) -> Method:
    """FedGrEM with one of the field's center rules, which is told the share of bad sites, and a chosen penalty."""
    return Method(f"nnm+{name}" if mixing else name, "fedgrem", {"center": name, "mixing": mixing}, None)


class Ratios:
    """Mean errors of the honest sites, over those of the default without attack, and of fitting alone."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.cells = list(dict.fromkeys(s.panel for s in results.settings))
        self.tried = list(dict.fromkeys(s.simulation["attack"] for s in results.settings))
        self.settings = {(s.panel, s.simulation["attack"]): s for s in results.settings}

    def error(self, cell: str, attack: str, method: str) -> float:
        """The mean over the seeds; infinite where any fit has no answer."""
        values = np.array(self.results.values("theta_error", self.settings[cell, attack], method))
        return float(values.mean()) if len(values) and np.isfinite(values).all() else float("inf")

    def over(self, cell: str, attack: str, method: str, yardstick: str) -> float:
        """Over the error that ``yardstick`` has without attack; NaN where it was not run."""
        if yardstick not in self.results.names:
            return float("nan")
        return self.error(cell, attack, method) / self.error(cell, NONE, yardstick)

    def worst(self, cell: str, method: str, yardstick: str) -> tuple[float, str]:
        """The largest over the attacks, and which it was."""
        return max((self.over(cell, attack, method, yardstick), attack) for attack in self.tried)

    def grid(self, methods: list[str], yardstick: str) -> Array:
        """(methods, cells) the worst of every cell."""
        return np.array([[self.worst(cell, name, yardstick)[0] for cell in self.cells] for name in methods])

    def where(self, cell: str) -> dict[str, Any]:
        """What the cell stands for."""
        return self.settings[cell, self.tried[0]].simulation


def page(results: Results) -> Page:
    """Worst cases by rule, ours attack by attack, and what verdicts made of it."""
    ratios = Ratios(results)
    yardstick = OURS.name if OURS.name in results.names else results.names[0]
    shared = [name for name in results.names if name != ALONE.name]
    tables = [
        _by_rule(ratios, shared, yardstick, "without attack"),
        *([_by_rule(ratios, shared, ALONE.name, "fitted alone")] if ALONE.name in results.names else []),
        *(_by_attack(ratios, name) for name in results.names if name == OURS.name),
    ]
    caption = (
        "The largest error of honest sites under the worst attack (above, by center rule) and under every attack "
        f"(below, {name_of(yardstick)}), over that of {name_of(yardstick)} without attack."
    )
    remark = (
        "All rules but the default are told how many sites are bad, and choose the penalty on held-out rows; the "
        "default estimates how alike sites are."
    )
    verdicts = _verdicts(ratios) if OURS.name in results.names else []
    return Page(partial(_figure, ratios, shared, yardstick), caption, tables, verdicts, remark=remark, facts=FACTS)


def _by_rule(ratios: Ratios, methods: list[str], yardstick: str, than: str) -> Table:
    grid = ratios.grid(methods, yardstick)
    body = [[name_of(name), *(f"{value:.2f}" for value in line)] for name, line in zip(methods, grid, strict=True)]
    least = np.where(np.isfinite(grid), grid, np.inf).min(axis=0)
    note = (
        "Mean over seeds of the largest error over honest sites and components. Bold: within 3% of the least of a cell."
    )
    title = f"Worst of {len(ratios.tried)} attacks: error over that {than}"
    return Table(title, ["rule", *ratios.cells], body, note, stressed(grid <= 1.03 * least))


def _by_attack(ratios: Ratios, method: str) -> Table:
    def cell(where: str, attack: str) -> str:
        chosen = ratios.settings[where, attack]
        recall, alarms = (ratios.results.stat(what, chosen, method) for what in ("recall", "alarms"))
        found = "no answer" if not alarms.n else f"{alarms.mean:.1%}" if attack == NONE else ""
        found = found or f"{recall.mean:.0%} / {alarms.mean:.1%}"
        return f"{ratios.over(where, attack, method, method):.2f}\n{found}"

    body = [[attack, *(cell(where, attack) for where in ratios.cells)] for attack in ratios.tried]
    note = "Below each ratio: the share of bad sites called suspect / that of honest ones; without attack, the latter."
    return Table(f"{name_of(method)}, attack by attack", ["attack", *ratios.cells], body, note)


def _verdicts(ratios: Ratios) -> list[Verdict]:
    ours, found = OURS.name, []
    missed = []
    for cell in ratios.cells:
        told, (value, attack) = ratios.where(cell), ratios.worst(cell, ours, ours)
        bar = BARS[told["h"]].get(told["share"])
        missed += [f"{cell}: {value:.2f}, above {bar:g} ({attack})"] if bar is not None and not value <= bar else []
    claim = (
        "No attack by up to 30% of the sites raises the error more than the best told rules of the field would allow."
    )
    found.append(Verdict(claim, not missed, f"{'; '.join(missed) or 'it does not'}."))
    if ALONE.name in ratios.results.names:
        worst = {cell: ratios.worst(cell, ours, ALONE.name) for cell in ratios.cells}
        lost = [f"{cell}: {v:.2f} ({attack})" for cell, (v, attack) in worst.items() if not v <= SLACK]
        finding = "; ".join(lost) or f"at most {max(v for v, _ in worst.values()):.2f} times"
        found.append(
            Verdict(f"No fit is worse than fitting alone by more than {SLACK - 1:.0%}.", not lost, f"{finding}.")
        )
    rounds = [float(r) for s in ratios.results.settings for r in ratios.results.values("rounds", s, ours)]
    plain = [ratios.results.values("rounds", ratios.settings[cell, NONE], ours) for cell in ratios.cells]
    most = 2 * max(max(values, default=0.0) for values in plain) + 10
    finding = f"the longest took {max(rounds, default=0.0):.0f} rounds."
    found.append(Verdict(f"Every fit ends within {most:.0f} rounds.", max(rounds, default=0.0) <= most, finding))
    return found


def _figure(ratios: Ratios, methods: list[str], yardstick: str) -> Figure:
    by_attack = np.array([[ratios.over(c, a, yardstick, yardstick) for c in ratios.cells] for a in ratios.tried])
    rows = len(methods), len(ratios.tried)
    figure = new_figure((max(9.0, 3.0 + 0.62 * len(ratios.cells)), 2.4 + 0.27 * sum(rows)), dpi=160)
    above, below = figure.subplots(2, 1, height_ratios=rows, sharex=True)
    image = _heat(above, ratios.grid(methods, yardstick), [name_of(name) for name in methods], "worst attack, by rule")
    _heat(below, by_attack, ratios.tried, f"{name_of(yardstick)}, by attack")
    below.set_xticks(range(len(ratios.cells)), ratios.cells, rotation=60, ha="right", fontsize=8)
    bar = figure.colorbar(image, ax=[above, below], ticks=[1, 1.5, 2, 3, 5], fraction=0.03, pad=0.02)
    bar.ax.minorticks_off()
    bar.ax.set_yticklabels(["1", "1.5", "2", "3", "5 and more"])
    bar.set_label("error, over that without attack")
    return figure


def _heat(ax: Axes, values: Array, names: list[str], title: str) -> Any:
    """A map with its numbers in it; what has none is grey."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm

    shades = colormaps["cividis_r"].with_extremes(bad="#BBBBBB")
    shown = np.clip(np.nan_to_num(values, posinf=1e9, nan=np.nan), 1.0, 5.0)
    image = ax.imshow(np.ma.masked_invalid(shown), cmap=shades, norm=LogNorm(1.0, 5.0), aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        text = "∞" if np.isinf(value) else f"{value:.1f}" if value < 99.95 else "≥100"
        ax.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if shown[i, j] > 2.2 else "black")
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.tick_params(length=0)
    ax.set_title(title, loc="left", fontsize=11)
    return image
