"""The paper's tables on real data, ``pen``, ``mnist`` and ``fashion``: mis-clustering by contaminated sites."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedgrem.plots.axes import finish, new_figure
from fedgrem.report.text import name_of
from fedgrem.studies.base import (
    FITS,
    METHODS,
    Page,
    Results,
    Setting,
    Stat,
    Study,
    Table,
    Verdict,
    effort_table,
    methods,
    near_least,
    stressed,
)
from fedgrem.studies.drawing import STYLES, legend, log_y, method_line
from fedgrem.studies.paper import beside, reported
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EMBEDDINGS = {"mnist": "umap", "fashion": "pca"}
"""Data set -> the embedding on which fits to different samples agree most, see ``benchmarks/embeddings.py``."""
WAYS = {
    "far": ("rows far away", "the rows that the site fits are replaced by a Gaussian far away from all others"),
    "permuted": ("features permuted", "its features are permuted: the same columns in another order"),
    "clump": ("rows in a tight clump", "its rows are replaced by a tight clump near a cluster of another site"),
}
"""How a site is contaminated, see :func:`fedgrem.studies.splits.split_and_contaminate`: its title, and what is done."""
NOBODY = "none"
"""The panel of the setting without contamination, shared by all ways."""
NEAR = 0.3
"""Points of mis-clustering within which a method counts as good as the best."""
SLACK = 0.2
"""Points by which FedGrEM may be worse than EM at each site alone."""
TARGETS = {"pen": {0.0: 4.5, 20.5: 5.0}}
"""Study -> percent of contaminated sites -> the most mis-clustering that we want of FedGrEM."""
WIDE = 3.0
"""Largest over least mean error beyond which the axis is logarithmic."""
IN_PAPER = "FedGrEM in the paper"

_IMAGES = "70,000 images of 28 x 28 pixels in 10 classes, divided among 100 sites at random, embedded in 10 dimensions"
SOURCES = {
    "pen": "Pen-Based Recognition of Handwritten Digits (UCI data set 81, Alpaydin and Alimoglu, CC BY 4.0): 10,992 "
    "digits, 16 features, 44 writers, each of them a site",
    "mnist": f"MNIST (LeCun, Cortes and Burges): {_IMAGES}",
    "fashion": f"Fashion-MNIST (Zalando Research, MIT licence): {_IMAGES}",
}
"""Data set -> source, licence, sites."""
SHAPES = {
    "identity": "unit covariances, as in the paper",
    "spherical": "one variance each",
    "diag": "a variance for every column each",
    "tied": "one shared covariance matrix",
    "full": "a covariance matrix each",
}
"""Covariance -> what the components have."""
OURS = (
    "the paper's fixed penalty C = 2 (for covariances too, where they are estimated), rows counted by site, one "
    "gradient step with C_eta = 0.95 a round and no extrapolation; other than in the paper, steps are divided by the "
    "present weights and the center is solved to tolerance. No penalty is chosen on held-out rows, and no site is "
    'given its own fit back: the default of the estimators, penalty="auto", does both; benchmarks/pen_defaults.py '
    "compares it with fixed penalties on Pen digits"
)
"""Which FedGrEM is run: :data:`fedgrem.studies.base.OURS` in words, not the default of an estimator."""
CAPTION = (
    "Mean mis-clustering on held-out rows of the sites that are not contaminated, by the share of sites that are, one "
    "panel per way of contamination. The band is FedGrEM's, two standard errors either side; hollow marks are the "
    "paper's FedGrEM, the same in every panel, since the paper does not say which way it used."
)
EMBEDDED = (
    "The paper embedded by t-SNE in 10 dimensions and does not say which program or settings it used. Distances and "
    "densities are an embedding's own: figures on this page can be compared between methods, not with the paper's. An "
    "embedding is made of all rows at once, without labels, before sites are drawn."
)
CONTAMINATED = (
    "The paper does not say what it did to the sites it contaminated. Here each of these was run; which sites are hit "
    "is drawn anew with each seed. Errors are those of the other sites."
)


def pen(quick: bool = False) -> Study:
    """Pen digits: 44 writers."""
    return _study("pen", "Pen digits", {6.8: 3, 13.6: 6, 20.5: 9}, quick)


def mnist(quick: bool = False) -> Study:
    """MNIST: 70,000 embedded images over 100 random sites."""
    return _study("mnist", "MNIST, embedded", {8.0: 8, 16.0: 16, 24.0: 24}, quick)


def fashion(quick: bool = False) -> Study:
    """Fashion-MNIST, likewise."""
    return _study("fashion", "Fashion-MNIST, embedded", {8.0: 8, 16.0: 16, 24.0: 24}, quick)


def _study(name: Literal["pen", "mnist", "fashion"], title: str, counts: dict[float, int], quick: bool) -> Study:
    """No site contaminated, then these numbers of them in every way; the percentages are the paper's."""
    chosen, embedding = list(counts.items())[-1 if quick else 0 :], EMBEDDINGS.get(name)
    hit = (
        Setting(f"{percent:g}% {way}", name, percent, {"contaminated": count, "way": way}, way, embedding=embedding)
        for way in WAYS
        for percent, count in chosen
    )
    settings = (Setting("0%", name, 0.0, {}, NOBODY, embedding=embedding), *hit)
    return Study(name, title, settings, methods(*METHODS), 2 if quick else 200, page)


def page(results: Results) -> Page:
    """Mis-clustering by contaminated sites, one table and one panel per way, beside the paper's."""
    images = results.study.name != "pen"
    tables = [*(_error_table(results, way) for way in _ways(results)), _time_table(results), effort_table(results, 2)]
    return Page(
        partial(_figure, results),
        CAPTION + (" Theirs are on another embedding." if images else ""),
        tables,
        _verdicts(results),
        note=EMBEDDED if images else "",
        remark=CONTAMINATED,
        facts=facts(results, "four fifths of each site"),
        ways={way: WAYS[way][1] for way in _ways(results)},
    )


def facts(results: Results, kept: str) -> dict[str, str]:
    """What was fitted and what was scored; ``kept`` says how many rows are fitted."""
    setting = results.settings[0]
    fits = FITS[setting.model]
    told = {
        "data": SOURCES[setting.model],
        "each seed": f"{kept} are fitted without labels; a fifth that no fit has seen is scored, with the groups of "
        "each site matched to its labels as suits it best",
        "model": f"Gaussian components with {SHAPES[setting.covariance]}, in units common to all sites, for all "
        "methods; the paper's have identity covariances",
        "starts": f"the best of {fits.n_init} restarts of {fits.short} EM iterations at every site, followed for "
        f"{fits.long}, twice, and compared with the common one; on pooled rows, the best of 10 restarts "
        "of 20 iterations, on some 4,000 rows if there are more, or the start that the sites have in common, whichever "
        f"is likelier after {fits.long} rounds on all",
        "fits": f"until parameters move by less than {fits.tolerance:g} a round, {fits.most_rounds} rounds at most",
    }
    return told | ({"FedGrEM": OURS} if "fedgrem" in results.names else {})


def _ways(results: Results) -> list[str]:
    return list(dict.fromkeys(s.panel for s in results.settings if s.panel != NOBODY))


def _settings(results: Results, way: str) -> list[Setting]:
    """Without contamination, then more and more of it in one way."""
    return [s for s in results.settings if s.panel in (NOBODY, way)]


def _told(results: Results, percent: float, method: str) -> Stat | None:
    """What the paper prints for this share of contaminated sites."""
    return reported(f"misclustered {results.study.name}", percent, method)


def _means(results: Results, settings: list[Setting]) -> Array:
    """(methods, settings) mean mis-clustering."""
    return np.array([results.means("error", name, settings) for name in results.names])


def _error_table(results: Results, way: str) -> Table:
    """Ours and the paper's, methods down, percent of contaminated sites across."""
    settings = _settings(results, way)
    body = [
        [name_of(m), *(beside(results.stat("error", s, m), _told(results, s.x, m), 2) for s in settings)]
        for m in results.names
    ]
    note = (
        "In each cell: ours, and below it the paper's, which does not say how it contaminated sites; a dash: it has no "
        f"such figure. Bold: the least of ours, and all within {NEAR} points of it."
    )
    if results.study.name != "pen":
        note += " The paper's figures are on its own embedding."
    title = f"Mis-clustering in percent, {WAYS[way][0]}: mean (sd) over seeds"
    strong = stressed(near_least(_means(results, settings), slack=NEAR))
    return Table(title, ["method", *(f"{s.x:g}%" for s in settings)], body, note, strong)


def _time_table(results: Results) -> Table:
    """Seconds of a fit, ours and the paper's, methods down, percent of contaminated sites across."""
    by_percent = {x: [s for s in results.settings if s.x == x] for x in dict.fromkeys(s.x for s in results.settings)}
    told = f"seconds {results.study.name}"
    body = [
        [name_of(m)] + [beside(results.stat("seconds", s, m), reported(told, x, m), 2) for x, s in by_percent.items()]
        for m in results.names
    ]
    note = (
        "In each cell: ours, from the shared start on, on one thread, whichever way sites are contaminated. Below it "
        "the paper's, with its own R code on one core of another machine (Xeon Gold 6226R); whether its starts are "
        "counted it does not say. A dash: it has no such figure."
    )
    title = "Seconds of a fit: mean (sd) over seeds and ways of contamination"
    return Table(title, ["method", *(f"{x:g}%" for x in by_percent)], body, note)


def _verdicts(results: Results) -> list[Verdict]:
    """The claims about this study; those about methods that were not run are left out."""
    if "fedgrem" not in results.names:
        return []
    found = [_best(results)] if len(results.names) > 1 else []
    if "local-em" in results.names:
        found.append(_no_harm(results))
    found += [_target(results, percent, most) for percent, most in TARGETS.get(results.study.name, {}).items()]
    rivals = [name for name in ("local-em", "fedem") if name in results.names]
    return [*found, *(_order(results, rivals) if rivals else [])]


def _best(results: Results) -> Verdict:
    settings = [s for s in results.settings if s.panel != NOBODY]
    means = _means(results, settings)
    least = np.where(np.isnan(means), np.inf, means)
    ours = means[results.names.index("fedgrem")]
    behind = ours - least.min(axis=0)
    claim = f"FedGrEM is the best method, or within {NEAR} points of the best, wherever sites are contaminated."
    late = np.flatnonzero(~(behind <= NEAR))  # NaN is late, too
    if len(late):
        winner, best = [results.names[i] for i in least.argmin(axis=0)], least.min(axis=0)
        told = (
            f"{settings[i].name} (FedGrEM {ours[i]:.2f}, {name_of(winner[i])} {best[i]:.2f})" for i in late.tolist()
        )
        return Verdict(claim, False, f"it is farther behind at {len(late)} of {len(settings)}: {', '.join(told)}.")
    worst = int(behind.argmax())
    if behind[worst] <= 0:
        return Verdict(claim, True, f"it is the best at all {len(settings)} settings.")
    return Verdict(claim, True, f"at worst it is {behind[worst]:.2f} points behind, at {settings[worst].name}.")


def _no_harm(results: Results) -> Verdict:
    gaps = {s.name: results.gap("error", s, "fedgrem", "local-em").mean for s in results.settings}
    claim = f"At no setting is FedGrEM worse than EM at each site alone by more than {SLACK} points."
    late = [f"{name} ({gap:+.2f})" for name, gap in gaps.items() if not gap <= SLACK]
    if late:
        return Verdict(claim, False, f"it is at {', '.join(late)}.")
    worst = max(gaps, key=lambda name: gaps[name])
    if gaps[worst] < 0:
        return Verdict(claim, True, f"it is better everywhere, by {-gaps[worst]:.2f} points at least, at {worst}.")
    return Verdict(claim, True, f"at worst it is {gaps[worst]:.2f} points above Local-EM, at {worst}.")


def _target(results: Results, percent: float, most: float) -> Verdict:
    means = {s.name: results.stat("error", s, "fedgrem").mean for s in results.settings if s.x == percent}
    paper = _told(results, percent, "fedgrem")
    beside_it = f" (the paper: {paper.mean:.2f}%)" if paper else ""
    way = ", in whatever way" if percent else ""
    claim = f"FedGrEM puts at most {most}% of rows into a wrong group with {percent:g}% of sites contaminated{way}"
    finding = ", ".join(f"{mean:.2f}% at {name}" for name, mean in means.items()) or "there is no such setting"
    holds = all(mean <= most for mean in means.values()) if means else None
    return Verdict(f"{claim}{beside_it}.", holds, f"{finding}.")


def _order(results: Results, rivals: Sequence[str]) -> list[Verdict]:
    """Asked where the paper has it so: on MNIST without contamination it has FedEM below FedGrEM."""

    def in_paper(setting: Setting) -> bool:
        ours, *theirs = (_told(results, setting.x, name) for name in ("fedgrem", *rivals))
        return ours is not None and all(one is not None and ours.mean < one.mean for one in theirs)

    asked = [s for s in results.settings if in_paper(s)]
    if not asked:
        return []
    claim = f"The paper's order holds: FedGrEM below {' and '.join(map(name_of, rivals))}"
    others = [s.name for s in results.settings if s not in asked]
    claim += f" (except at {', '.join(others)}, where it is not so in the paper)." if others else "."
    gaps = {(s.name, rival): results.gap("error", s, "fedgrem", rival) for s in asked for rival in rivals}
    against = {key: gap for key, gap in gaps.items() if not gap.mean < 0}
    if not against:
        (place, rival), gap = max(gaps.items(), key=lambda one: one[1].mean)
        return [Verdict(claim, True, f"by {-gap.mean:.2f} points at least ({name_of(rival)} at {place}).")]
    clear = any(gap.mean > 2 * gap.se or gap.n == 0 for gap in against.values())
    listed = ", ".join(
        f"{name_of(rival)} at {name} ({gap.mean:+.2f}" + (f", standard error {gap.se:.2f})" if gap.n > 1 else ")")
        for (name, rival), gap in against.items()
    )
    doubt = "" if clear else "; by no more than two standard errors, or on a single seed"
    return [Verdict(claim, False if clear else None, f"it is not below {listed}{doubt}.")]


def _figure(results: Results) -> Figure:
    ways = _ways(results)
    figure = new_figure((max(7.0, 4.0 * len(ways)), 5.2), dpi=160)
    axes = figure.subplots(1, len(ways), sharey=True, squeeze=False)[0]
    means = _means(results, results.settings)
    means = means[np.isfinite(means) & (means > 0)]
    for ax, way in zip(axes, ways, strict=True):
        settings = _settings(results, way)
        percent = [s.x for s in settings]
        for name in reversed(results.names):  # ours on top
            method_line(ax, percent, [results.stat("error", s, name) for s in settings], name)
        told = {x: one.mean for x in percent if (one := _told(results, x, "fedgrem"))}
        if told and "fedgrem" in results.names:  # the same in every panel: the paper does not say for which way
            color, marker, _ = STYLES["fedgrem"]
            ax.plot(list(told), list(told.values()), color=color, marker=marker, mfc="white", markersize=6.5,
                    linestyle="none", markeredgewidth=1.4, zorder=6, label=IN_PAPER)  # fmt: skip
        ax.set_xticks(percent, [f"{value:g}" for value in percent])
        finish(ax, WAYS[way][0], "contaminated sites, %", grid="y")
        if len(means) and means.max() > WIDE * means.min():
            log_y(ax, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axes[0].set_ylabel("mis-clustering, %")
    legend(figure, axes[0], results.names, IN_PAPER)
    return figure
