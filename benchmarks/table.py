"""A table of mixed columns over four sites: what is found, how well, how fast, and what the federation is good for.

Made up: 900 rows of 14 columns (continuous, yes/no, codes, counts), four groups, 5% of the cells missing; one site has
no "marker", at another "chol" is 0 for everybody, and at a third two groups are replaced by two of its own.

Run: python benchmarks/table.py [seeds]. Needs StepMix, to be compared with.
"""

import resource
import subprocess
import sys
import time
import warnings

import numpy as np

SIZES = {"north": 300, "south": 120, "east": 200, "west": 280}
KINDS = {
    "age": "continuous", "pressure": "continuous", "chol": "continuous", "rate": "continuous", "marker": "continuous",
    "male": "binary", "smokes": "binary", "pain": "binary", "fever": "binary", "surgery": "binary",
    "cp": "categorical", "ecg": "categorical", "thal": "categorical", "visits": "count",
}  # fmt: skip
GROUPS = 4


def profiles(generator, groups):
    """Parameters of groups: means, probabilities of yes, probabilities of levels, rates."""
    found = []
    for _ in range(groups):
        found.append(
            {
                "means": generator.normal(size=5) * 1.1,
                "yes": generator.beta(0.7, 0.7, size=5),
                "levels": [generator.dirichlet(np.full(n, 0.6)) for n in (4, 3, 3)],
                "rate": np.exp(generator.normal(1.2, 0.6)),
            }
        )
    return found


def federation(seed):
    """Frames with and without gaps, sites, groups (those of its own 4 and 5), and the odd site."""
    import pandas as pd

    generator = np.random.default_rng(seed)
    common, own = profiles(generator, GROUPS), profiles(generator, 2)
    units = np.array([[55, 9], [132, 17], [245, 50], [140, 22], [3.1, 0.9]])
    frames, sites, groups = [], [], []
    for name, n in SIZES.items():
        known = [*common[:2], *own] if name == "west" else common
        label = np.array([0, 1, 4, 5]) if name == "west" else np.arange(4)
        z = generator.choice(4, size=n, p=generator.dirichlet(np.full(4, 8.0)))
        x = np.stack([known[r]["means"] for r in z]) + generator.normal(size=(n, 5))
        data = dict(zip(list(KINDS)[:5], (x * units[:, 1] + units[:, 0]).T, strict=True))
        yes = generator.random((n, 5)) < np.stack([known[r]["yes"] for r in z])
        data |= dict(zip(list(KINDS)[5:10], yes.T, strict=True))
        for j, column in enumerate(("cp", "ecg", "thal")):
            data[column] = np.array(
                [1 + generator.choice(len(known[r]["levels"][j]), p=known[r]["levels"][j]) for r in z]
            )
        data["visits"] = generator.poisson([known[r]["rate"] for r in z])
        frames.append(pd.DataFrame(data))
        sites += [name] * n
        groups.append(label[z])
    whole = pd.concat(frames, ignore_index=True)
    sites, groups = np.array(sites), np.concatenate(groups)
    gappy = whole.astype({c: object for c in whole.columns if KINDS[c] == "binary"}).copy()
    gappy = gappy.astype({c: float for c in whole.columns if KINDS[c] in ("categorical", "count")})
    gappy.loc[sites == "south", "chol"] = 0.0
    gappy = gappy.mask(pd.DataFrame(generator.random(whole.shape) < 0.05, columns=whole.columns))
    gappy.loc[sites == "east", "marker"] = np.nan
    return whole, gappy, sites, groups


def fitted(frame, sites, seed=0, **options):
    """A fit, its warnings aside."""
    from fedgrem import FederatedTableMixture

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FederatedTableMixture(GROUPS, random_state=seed, **options).fit(frame, sites=sites)


def held_out(frame, sites, seed):
    """Per site, held-out log-likelihood per row: the federation's, alone, merged; (K, 3), and errors of differences."""
    generator = np.random.default_rng(seed)
    fold = generator.integers(5, size=len(frame))
    found = {}
    values = np.empty((len(frame), 3))
    for part in range(5):
        train, test = fold != part, fold == part
        types = {"columns": {c: (sorted({str(int(v)) for v in frame[c].dropna()}) if KINDS[c] == "categorical" else k)
                             for c, k in KINDS.items()}}  # fmt: skip
        ways = {"federated": {}, "alone": {"algorithm": "local-em"}, "merged": {"algorithm": "pooled-em"}}
        for way, (_, options) in enumerate(ways.items()):
            model = fitted(frame[train], sites[train], standard_errors=False, **types, **options)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                values[test, way] = model.score_samples(frame[test], sites=sites[test])
    for name in SIZES:
        mine = values[sites == name]
        away = mine[:, [0]] - mine[:, 1:]
        found[name] = mine.mean(axis=0), away.std(axis=0, ddof=1) / np.sqrt(len(mine))
    return found


def cold():
    """One fit in a fresh process: seconds and megabytes; pandas and the table are there already."""
    _, gappy, sites, _ = federation(0)
    marks = [(time.perf_counter(), time.process_time())]
    import scipy.optimize
    import scipy.special  # noqa: F401
    import sklearn.base
    import sklearn.utils.validation  # noqa: F401

    marks.append((time.perf_counter(), time.process_time()))
    import fedgrem  # noqa: F401
    from fedgrem import FederatedTableMixture  # noqa: F401

    marks.append((time.perf_counter(), time.process_time()))
    fitted(gappy, sites)
    marks.append((time.perf_counter(), time.process_time()))
    passed, used = np.diff(np.array(marks), axis=0).T
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for name, wall, processor in zip(("SciPy and scikit-learn", "fedgrem", "the fit"), passed, used, strict=True):
        print(f"cold, {name}: {wall:.2f} s, {processor:.2f} s of processor time")
    print(f"cold, all of it: {passed.sum():.2f} s, {used.sum():.2f} s of processor time, {most:.0f} MB", flush=True)


def iterations(seed=0, count=200):
    """Milliseconds of processor time of one EM iteration on the merged table: of this package and of StepMix.

    StepMix knows no counts, and so these are continuous here for both.
    """
    from stepmix import StepMix

    from fedgrem.data.columns import encode, read_columns
    from fedgrem.data.federation import Site, stack_sites
    from fedgrem.families.base import weights_of
    from fedgrem.families.table import Table
    from fedgrem.types import Params

    _, gappy, _, _ = federation(seed)
    types = read_columns(gappy, {name: kind if kind != "count" else "continuous" for name, kind in KINDS.items()})
    rows = encode(gappy, types)
    numbers = [j for j, column in enumerate(types) if column.kind == "continuous"]
    rows[:, numbers] = (rows[:, numbers] - np.nanmean(rows[:, numbers], 0)) / np.nanstd(rows[:, numbers], 0)
    measures = {c.name: {"model": f"{c.kind}_nan", "n_columns": 1} for c in types}

    def theirs(steps):
        begun = time.process_time()
        StepMix(GROUPS, measurement=measures, max_iter=steps, abs_tol=0.0, progress_bar=0, random_state=0).fit(rows)
        return time.process_time() - begun

    family, stack = Table(types), stack_sites([Site("merged", rows, None, np.ones(len(rows)))], gaps=True)
    theta = family.draw(stack, 0, "start", 1, GROUPS, None)[:, 0]
    params = Params(np.full((1, GROUPS), 1 / GROUPS), theta, np.zeros((1, *family.noise_shape(GROUPS, len(types)))))

    def ours(steps):
        nonlocal params
        begun = time.process_time()
        for _ in range(steps):
            sums = family.expect(stack, params)
            theta = family.maximize(stack, params, sums)
            params = Params(weights_of(sums), theta, family.noise_step(sums, theta, params.noise))
        return time.process_time() - begun

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours(1)
        mine, other = ours(count) / count, (theirs(count + 1) - theirs(1)) / count
    print(f"an EM iteration on the merged table: {1e3 * mine:.2f} ms, StepMix {1e3 * other:.2f} ms: "
          f"{mine / other:.2f} of it", flush=True)  # fmt: skip


def main(seeds=3):
    """All of it."""
    from sklearn.metrics import adjusted_rand_score

    subprocess.run([sys.executable, __file__, "cold"], check=True)
    iterations()
    for seed in range(seeds):
        whole, gappy, sites, groups = federation(seed)
        begun = time.process_time()
        model = fitted(gappy, sites)
        seconds = time.process_time() - begun
        complete = fitted(whole, sites, columns=KINDS)
        agree = [adjusted_rand_score(groups[sites == s], np.asarray(one.predict(f, sites=sites))[sites == s])
                 for one, f in ((model, gappy), (complete, whole)) for s in SIZES]  # fmt: skip
        right = model.columns_ == KINDS
        print(f"\nseed {seed}: types {'as they are' if right else model.columns_}; {seconds:.2f} s of processor time, "
              f"{model.n_rounds_} rounds, penalty {model.penalty_:g}")  # fmt: skip
        print("  ARI by site, with gaps", np.round(agree[:4], 2), "complete", np.round(agree[4:], 2),
              f"ratio {np.mean(agree[:4]) / np.mean(agree[4:]):.3f}")  # fmt: skip
        print("  verdicts", dict(zip(model.site_names_.tolist(), model.site_verdict_.tolist(), strict=True)))
        for note in model.notes_:
            print("  ", note)
        for name, (value, error) in held_out(gappy, sites, seed).items():
            print(f"  {name}: held out {value[0]:.3f}, alone {value[1]:.3f} (difference {value[0] - value[1]:+.3f}, "
                  f"se {error[0]:.3f}), merged {value[2]:.3f} ({value[0] - value[2]:+.3f}, se {error[1]:.3f})",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:] == ["cold"]:
        cold()
    else:
        main(*map(int, sys.argv[1:]))
