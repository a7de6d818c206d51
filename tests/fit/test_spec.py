"""The description of a fit: JSON both ways for whatever there is, and a refusal of everything else, in words."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrem.algorithms.center_rules import CENTER_RULES, Alternating
from fedgrem.algorithms.fedem import FedEM
from fedgrem.algorithms.fedem_sa import FedEMSA
from fedgrem.algorithms.fedgmm import FedGMM
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.algorithms.local import LocalGrEM
from fedgrem.algorithms.registry import ALGORITHMS
from fedgrem.algorithms.tgmm import TGMM
from fedgrem.data.columns import Column
from fedgrem.data.units import UnitsPlan
from fedgrem.errors import InputError
from fedgrem.families.covariance import STRUCTURES
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.registry import FAMILIES as REGISTERED
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.spec import COUNTS, MOST_PARAMETERS, RANGES, FitSpec, StartPlan, read_spec
from fedgrem.types import Params
from tests.conformance.families import FAMILIES

SPEC = FitSpec(Gaussian(), FedGrEM(), 2)
OTHERS = [
    FedGrEM.paper(step_size=0.5),
    FedGrEM(center=Alternating(7), noise_penalty=np.inf, batch=0.5, sites=0.25, pool_weights=True, local_steps=3),
    FedGrEM(noise_penalty=0.0, pool_weights=False, penalty_rows="site", memory=0),
    LocalGrEM(step_size=0.1),
    FedEM(averaging="plain"),
    FedGMM(covariate_components=5, reg_covar=0.1, averaging="mass"),
    TGMM(transfer=0.0),
    FedEMSA(approximation_step=0.1, keep=0.2, levels=0, participation=0.3, control_step=0.4),
]
"""Every option of every algorithm at something else than its default."""
CHANGES = {
    "penalty": 0.5, "fallback": False, "max_rounds": 7, "tol": 0.0, "seed": 2**40, "missing": True, "score": True,
    "candidate": True, "look": False, "standard_errors": False, "columns": ("age", "body mass"), "n_components": 9,
    "secure_sums": True, "some": 7, "ranges": ((-1.0, 1.0), (0.0, 120.0)),
    "words": (Column("pain", "binary", ("mild", "none")),),
    "start": StartPlan(3, 4, 5, 6, "exhaustive", 0), "units": UnitsPlan(True, False, True, (0, 2), True),
}  # fmt: skip


def again(spec):
    return read_spec(spec.to_json())


# -- there and back


@pytest.mark.parametrize("case", FAMILIES, ids=repr)
def test_every_family_comes_back(case):
    spec = replace(SPEC, family=case.family)
    assert again(spec) == spec


@pytest.mark.parametrize(
    "family",
    [Gaussian(STRUCTURES["full"](), reg_covar=0.25), LinearRegression("component", ridge=0.5, reg_covar=0.125)],
    ids=repr,
)
def test_the_options_of_a_family_come_back(family):
    assert again(replace(SPEC, family=family)).family == family


@pytest.mark.parametrize("algorithm", [*(one() for one in ALGORITHMS.values()), *OTHERS], ids=repr)
def test_every_algorithm_and_its_options_come_back(algorithm):
    assert again(replace(SPEC, algorithm=algorithm)).algorithm == algorithm


def test_the_algorithms_above_change_every_option():
    for one in ALGORITHMS.values():
        for option in fields(one):
            changed = [
                o for o in OTHERS if isinstance(o, one) and getattr(o, option.name) != getattr(one(), option.name)
            ]
            # How the penalty decays, the paper itself does not change; a float like all the others.
            assert changed or option.name in ("penalty_decay",) or one.__name__ in ("PooledGrEM",), option.name


@pytest.mark.parametrize("rule", CENTER_RULES)
def test_every_center_rule_comes_back_by_name_or_as_an_object(rule):
    made = CENTER_RULES[rule]()
    assert again(replace(SPEC, algorithm=FedGrEM(center=made))).algorithm.center == made
    assert again(replace(SPEC, algorithm=FedGrEM(center=rule))).algorithm.center_rule == made


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_comes_back(name):
    spec = replace(SPEC, **{name: CHANGES[name]})
    assert spec != SPEC
    assert again(spec) == spec


def test_the_fields_above_are_all_but_the_objects_and_the_given_start():
    assert set(CHANGES) == {f.name for f in fields(FitSpec)} - {"family", "algorithm", "given", "smaller"}


def test_the_center_of_a_smaller_fit_comes_back_and_one_per_site_is_refused():
    center = Params(np.array([0.25, 0.75]), np.array([[1.0, 0.1], [2.0, -3.0]]), np.full((1, 3), 0.1))
    for leaf, found in zip(center, again(replace(SPEC, smaller=center)).smaller, strict=True):
        np.testing.assert_array_equal(found, leaf)
    with pytest.raises(InputError, match=r"the spec's smaller start is not weights \(R\) and theta \(R, q\)"):
        read_spec(plain(smaller={"weights": [[1.0]], "theta": [[[1.0]]]}))


def test_infinity_comes_back_though_json_has_none():
    spec = replace(SPEC, penalty=np.inf)
    assert again(spec).penalty == np.inf
    assert "Infinity" not in spec.to_json()


@pytest.mark.parametrize("noise", [None, np.full((3, 1, 3), 0.1)], ids=["known", "estimated"])
def test_a_given_start_comes_back_to_the_bit(noise):
    generator = np.random.default_rng(0)
    start = Params(generator.dirichlet([1.0, 1.0], size=3), generator.normal(size=(3, 2, 4)), noise)
    for leaf, found in zip(start, again(replace(SPEC, given=start)).given, strict=True):
        assert (leaf is None) == (found is None)
        if leaf is not None:
            np.testing.assert_array_equal(found, leaf)


def test_numbers_of_numpy_are_plain_numbers():
    spec = FitSpec(
        Gaussian(), FedGrEM(step_size=np.float64(0.5)), np.int64(2), penalty=np.float64(1.5), seed=np.int64(3)
    )
    assert again(spec) == FitSpec(Gaussian(), FedGrEM(step_size=0.5), 2, penalty=1.5, seed=3)


def test_a_spec_is_one_line_of_plain_values():
    line = FitSpec(LinearRegression("shared"), FedEMSA(), 3, columns=("a", "b")).to_json()
    assert "\n" not in line
    assert json.loads(line)["algorithm"]["name"] == "fedem-sa"
    assert json.loads(line)["units"] == {
        "standardize": False,
        "move": True,
        "intercept": False,
        "scaled": None,
        "within": False,
        "response": True,
        "kept": None,
    }


def test_what_is_left_out_has_its_default():
    plain = {"family": "gaussian", "algorithm": "fedgrem", "n_components": 2}
    assert read_spec(plain) == read_spec(json.dumps(plain)) == SPEC


# -- refusals


def plain(**changes):
    return json.loads(SPEC.to_json()) | changes


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{", r"the spec is not JSON"),
        ("[]", r"the spec is a list, expected a mapping"),
        (3, r"the spec is a int, expected a mapping"),
        ({"family": "gaussian", "algorithm": "fedgrem"}, r"the spec lacks n_components"),
        ({"n_components": 2}, r"the spec lacks family"),
        (plain(colour="red"), r"the spec names colour, which this fedgrem does not know; update it"),
        (plain(family="own"), r"the spec has family='own', expected one of gaussian, regression, poisson"),
        (plain(family=None), r"the spec has family='None', expected one of"),
        (plain(family={"name": ["gaussian"]}), r"expected one of gaussian"),
        (
            plain(family={"name": "gaussian", "covariance": "round"}),
            r"spec's family has covariance='round', expected one",
        ),
        (
            plain(family={"name": "regression", "noise": "loud"}),
            r"noise='loud', expected one of unit, shared, component",
        ),
        (plain(family={"name": "poisson", "rate": 1}), r"the spec's family names rate"),
        (plain(algorithm="os.system"), r"the spec has algorithm='os.system', expected one of fedgrem"),
        (plain(algorithm={"name": "frozen-center"}), r"algorithm='frozen-center', expected one of"),
        (plain(algorithm={"name": "fedem", "step_size": 0.5}), r"the spec's algorithm names step_size"),
        (plain(algorithm={"name": "fedgrem", "center": "mode"}), "center='mode', expected one of empirical-bayes"),
        (plain(algorithm={"name": "fedgrem", "pool_weights": "yes"}), r"pool_weights='yes', expected .*auto"),
        (plain(n_components="2"), r"n_components='2', expected a whole number of at most 1000"),
        (plain(n_components=2.0), r"n_components='2.0', expected a whole number"),
        (plain(n_components=True), r"n_components='True', expected a whole number"),
        (plain(n_components=10**9), r"expected a whole number of at most 1000"),
        (plain(fallback=1), r"fallback='1', expected true or false"),
        (plain(penalty="strong"), r"penalty='strong', expected a number or null"),
        (plain(penalty=True), r"penalty='True', expected a number or null"),
        (plain(columns="age"), r"the spec's columns are not a list of names"),
        (plain(columns=[1]), r"the spec's columns are not a list of names"),
        (plain(start={"alignment": "any"}), r"alignment='any', expected one of assignment, stepwise, exhaustive, none"),
        (plain(start={"n_init": 10**6}), r"the spec's start has n_init='1000000', expected .* at most 1000"),
        (plain(start=[]), r"the spec's start is a list"),
        (plain(units={"standardise": True}), r"the spec's units names standardise"),
        (plain(units={}), r"the spec's units lacks standardize"),
        (plain(given={"weights": [[1.0]]}), r"the spec's given start is not weights \(K, R\) and theta \(K, R, q\)"),
        (plain(given={"weights": "x", "theta": 1}), r"the spec's given start is not"),
        (plain(given={"weights": [0.5, 0.5], "theta": [[[1.0]]]}), r"the spec's given start is not"),
        (plain(given={"weights": [[0.5, 0.5]], "theta": [[[1.0]]]}), r"the spec's given start is not"),
        (plain(given=[1]), r"the spec's given start is not"),
    ],
)
def test_bad_specs_are_refused_in_words(given, words):
    with pytest.raises(InputError, match=words):
        read_spec(given)


def in_place(name, value):
    """A spec with an option somewhere."""
    for algorithm in ALGORITHMS.values():
        if name in {f.name for f in fields(algorithm)}:
            return plain(algorithm={"name": algorithm.name, name: value})
    if name in {f.name for f in fields(StartPlan)}:
        return plain(start={name: value})
    if name in {f.name for f in fields(FitSpec)}:
        return plain(**{name: value})
    if name == "sweeps":
        return plain(algorithm={"name": "fedgrem", "center": {"name": "alternating", name: value}})
    return plain(family={"name": "regression", name: value})


@pytest.mark.parametrize("name", sorted(RANGES))
def test_numbers_out_of_range_are_refused_with_the_range(name):
    interval = RANGES[name]
    low, high = (float(end) for end in interval[1:-1].split(","))
    whole = any(name in group for group in (COUNTS, ("sweeps", "covariate_components")))
    bad = [low - 1.0, *([low] if interval[0] == "(" else []), *([high] if interval[-1] == ")" else [])]
    bad += [] if np.isinf(high) else [high + 1.0]
    for value in bad + ([] if whole else [np.nan]):
        said = int(value) if whole and np.isfinite(value) else value
        with pytest.raises(InputError, match=name):
            read_spec(json.dumps(in_place(name, said)))
        with pytest.raises(InputError, match=name):
            read_spec(in_place(name, said))


@pytest.mark.parametrize("name", ["penalty", "tol", "ridge", "n_components", "n_init", "short", "long"])
def test_the_numbers_of_a_fit_have_ranges_too(name):
    assert name in RANGES


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_nobody_can_ask_a_site_for_endless_work(name):
    with pytest.raises(InputError, match=f"{name}=.*of at most {COUNTS[name]}"):
        read_spec(in_place(name, COUNTS[name] + 1))


def test_every_whole_number_of_a_spec_has_a_most():
    counts = {
        f.name
        for cls in (FitSpec, StartPlan, Alternating, *ALGORITHMS.values(), *REGISTERED.values())
        for f in fields(cls)
        if str(f.type) in ("int", "<class 'int'>", "int | None")
    }
    assert counts - {"seed"} <= set(COUNTS)


@pytest.mark.parametrize("name", ["penalty", "tol", "step_size"])
def test_a_number_too_large_for_a_float_is_refused_and_not_an_accident(name):
    with pytest.raises(InputError, match=name):
        read_spec(json.dumps(in_place(name, 10**400)))


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "theta", "weights"]), inner)
        ),
        max_leaves=6,
    ),
    st.sampled_from([f.name for f in fields(FitSpec)]),
)
def test_whatever_a_field_holds_it_is_read_or_refused(value, name):
    try:
        spec = read_spec(plain(**{name: value}))
    except InputError:
        return
    assert isinstance(spec, FitSpec)


# -- what follows from a spec


def test_standard_errors_are_asked_for_while_their_message_is_small():
    small, large = replace(SPEC, n_components=4), replace(SPEC, n_components=40)
    assert small.wants_errors(MOST_PARAMETERS // 4 - 1)
    assert not large.wants_errors(MOST_PARAMETERS // 40)
    assert replace(large, standard_errors=True).wants_errors(10**6)
    assert not replace(small, standard_errors=False).wants_errors(1)


def test_starts_are_compared_by_the_papers_penalty_where_it_is_to_be_chosen():
    assert (SPEC.start_penalty, replace(SPEC, penalty=0.3).start_penalty) == (2.0, 0.3)
