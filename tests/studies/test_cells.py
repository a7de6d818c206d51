"""One cell: same data, same starts, and errors that mean what the paper's do."""

import numpy as np
import pytest

from fedgrem.data.simulate import CENTERS, simulate
from fedgrem.studies.base import Method, Setting
from fedgrem.studies.cells import play_cell, signal

from .tiny import tiny_study


def test_snr_is_the_widest_gap_between_components_of_the_site_where_it_is_least():
    widest = np.linalg.norm(CENTERS[:, None] - CENTERS[None], axis=-1).max()
    assert signal(simulate("gmm", h=0.0, n_rows=2)) == pytest.approx(widest, rel=1e-12)


@pytest.mark.parametrize("start", ["shared", "poor"])
def test_a_method_gives_the_same_row_alone_and_in_company(start):
    study = tiny_study(start=start, rounds=3)
    both = play_cell(study.settings[0], 1, study.methods)
    alone = play_cell(study.settings[0], 1, study.methods[1:])
    assert [row["method"] for row in both] == ["local-em", "fedem"]
    for column in ("theta_error", "weight_error", "rounds", "snr"):
        assert both[1][column] == alone[0][column]
    assert both[0]["rounds"] == 3


@pytest.mark.parametrize("model", ["gmm", "mor"])
def test_paper_starts_serve_sites_and_pooled_rows_alike(model):
    setting = Setting("a", model, 0.0, {"n_sites": 3, "n_rows": [60, 60, 30]}, start="paper", rounds=2)
    rows = play_cell(setting, 0, (Method("local-em", "local-em"), Method("pooled-em", "pooled-em")))
    assert all(np.isfinite([row["theta_error"], row["weight_error"]]).all() for row in rows)
