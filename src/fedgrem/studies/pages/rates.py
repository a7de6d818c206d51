"""The rates of the theorem: slopes fitted to the mean errors of the study ``theory``, and what they say."""

import numpy as np

from fedgrem.studies.pages.stats import Row, Verdict, mean_of
from fedgrem.studies.specs import Study
from fedgrem.types import Array

EXPECTED = {"n": -0.5, "K": -0.5, "d": 0.5}
"""Slopes of log error against log x in the leading term of the theorem."""
MEASURED = {"K": "center_error"}
"""What is expected to have that slope, where it is not the error of θ."""


def rate_verdicts(study: Study, rows: list[Row]) -> list[Verdict]:
    """The claims of the theorem, one by one; nothing without FedGrEM and Local-EM."""
    if not {"fedgrem", "local-em"} <= {m.name for m in study.methods}:
        return []
    told = {
        "n": "The error falls as n^(-1/2).",
        "K": "Where sites are alike (h = 0), the error of the common center falls as K^(-1/2).",
        "d": "The error grows as d^(1/2).",
    }
    found = []
    for panel, claim in told.items():
        measure = MEASURED.get(panel, "theta_error")
        slopes = [slope(*panel_means(study, rows, panel, method, measure)) for method in ("fedgrem", "local-em")]
        near = abs(slopes[0] - EXPECTED[panel]) < 0.15
        finding = f"fitted slope {slopes[0]:+.2f} for FedGrEM, {slopes[1]:+.2f} for Local-EM"
        finding += f"; expected {EXPECTED[panel]:+.1f}."
        if panel == "K":
            worst = slope(*panel_means(study, rows, panel, "fedgrem"))
            finding += f" The largest error over sites, a maximum over ever more of them, has slope {worst:+.2f}."
        found.append(Verdict(claim, near, finding))
    h, ours = panel_means(study, rows, "h", "fedgrem")
    _, alone = panel_means(study, rows, "h", "local-em")
    finding = f"from {ours[0]:.2f} at h = {h[0]:g} to {ours[-1]:.2f} at h = {h[-1]:g}; Local-EM: {alone[-1]:.2f} there."
    grows = bool(ours[0] < ours[-1] and ours[-1] <= 1.1 * alone[-1])
    found.append(Verdict("The error grows with h, up to that of each site alone.", grows, finding))
    share, ours = panel_means(study, rows, "epsilon", "fedgrem")
    straight = float(np.corrcoef(share, ours)[0, 1])
    rise = float(np.polyfit(share, ours, 1)[0])
    finding = (
        f"{rise:+.2f} per unit of ε (correlation with a straight line {straight:.2f}), from {ours[0]:.2f} at ε = 0."
    )
    claim = "The error grows linearly with the share ε of outlier sites."
    found.append(Verdict(claim, True if straight > 0.9 else None if rise > 0 else False, finding))
    factor, fit = contraction(*panel_means(study, rows, "T", "fedgrem"))
    claim = "The error decays geometrically over rounds, down to the statistical error."
    finding = (
        f"from a poor start, what is left to the last error shrinks to {factor:.2f} of itself per round (correlation "
        f"of its log with T: {fit:.2f})."
    )
    found.append(Verdict(claim, bool(fit < -0.9), finding))
    return found


def slope(x: Array, y: Array) -> float:
    """Least-squares slope of log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def contraction(rounds: Array, error: Array) -> tuple[float, float]:
    """Factor per round by which the error nears its last value, and how straight that is on a log scale.

    Fitted while more than a thousandth of the way is left; the second is the correlation of log distance and round.
    """
    excess = np.abs(error - error[-1])
    early = excess > 1e-3 * excess[0]
    if early.sum() < 2:
        return float("nan"), float("nan")
    left = np.log(excess[early])
    return float(np.exp(np.polyfit(rounds[early], left, 1)[0])), float(np.corrcoef(rounds[early], left)[0, 1])


def panel_means(
    study: Study, rows: list[Row], panel: str, method: str, measure: str = "theta_error"
) -> tuple[Array, Array]:
    """Places on the axis and mean errors of the settings of one panel."""
    settings = [s for s in study.settings if s.panel == panel]
    means = [mean_of(rows, measure, setting=s.name, method=method) for s in settings]
    return np.array([s.x for s in settings]), np.array(means)
