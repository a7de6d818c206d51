"""`fedgrem plan` against simulated fits: `python benchmarks/plan.py --designs 30`.

Designs are drawn at random; for each, the largest error of theta over honest sites and components that is predicted
without a fit is compared with that of default fits to simulated rows, and of fits of every site alone: medians over
seeds. "Federating pays" where it lowers the largest error, by the median over seeds of the ratio. Finished designs are
kept in a file, and a second call goes on from there.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from common import Given, asked, one_of, show, table_of
from fedgrem.studies.discussion_parts import simulated
from fedgrem.theory.design import Design
from fedgrem.theory.predict import PAYS, predict

NEAR = 0.25
FOR_CALIBRATION = 1000
"""Number of the first design that constants are calibrated on; none of them is among those that are compared."""


def random_design(number: int, model: Any = "gmm") -> Design:
    """Of 5 to 30 sites; rows, columns, components, separation, similarity and bad sites as studies have them."""
    generator = np.random.default_rng([2024, number])
    n_sites = int(np.exp(generator.uniform(np.log(5), np.log(30.99))))
    n_components = int(generator.integers(2, 6))
    return Design(
        n_sites=n_sites,
        n_rows=int(n_components * np.exp(generator.uniform(np.log(20), np.log(120)))),
        n_features=int(generator.integers(2, 16)),
        n_components=n_components,
        separation=round(float(generator.uniform(3.0, 6.0)), 1),
        h=round(float(generator.choice([0.0, generator.uniform(0.0, 2.0)], p=[0.2, 0.8])), 2),
        n_outliers=int(generator.integers(0, n_sites // 5 + 1)),
        model=model,
    )


def compare(results: list[dict[str, Any]]) -> None:
    """A line for every design, and how often the plan was right."""
    heads = "design", "predicted", "simulated", "ratio", "alone: predicted", "simulated", "ratio", "pays", "does it"
    table = table_of("", *heads)
    near = right = 0
    for found in results:
        design = Design(**found["design"])
        errors = np.array(found["errors"])
        expected, (together, alone) = predict(design), np.median(errors, axis=0)
        ratio, says, does = expected.together / together, expected.pays, np.median(errors[:, 0] / errors[:, 1]) <= PAYS
        near += abs(ratio - 1.0) <= NEAR
        right += says == does
        told = (expected.together, together, ratio, expected.alone, alone, expected.alone / alone)
        words = (
            f"K {design.n_sites}, n {design.n_rows}, p {design.n_features}, R {design.n_components}, "
            f"{design.separation:g} apart, h {design.h:g}, {design.n_outliers} bad"
        )
        table.add_row(words, *(f"{value:.2f}" for value in told), *("yes" if value else "no" for value in (says, does)))
    show(
        table,
        f"The predicted largest error is within {NEAR:.0%} of the simulated in {near} of {len(results)} designs; "
        f"whether federating pays is right in {right}.",
    )


def calibrate(results: list[dict[str, Any]]) -> None:
    """What predictions are to be multiplied by: the median of simulated over predicted, without any such factor."""
    ratios = []
    for found in results:
        expected = predict(Design(**found["design"]), calibrated=False)
        ratios.append(np.median(found["errors"], axis=0) / (expected.together, expected.alone))
    together, alone = np.median(ratios, axis=0)
    show(f"Calibration({together:.2f}, {alone:.2f})")
    show(f"Quartiles: {np.quantile(ratios, [0.25, 0.75], axis=0).round(2).tolist()}")


def main() -> None:
    """Simulate what is not in the file yet, then compare."""
    arguments = asked(
        __doc__, designs=30, seeds=Given(7, "simulations of each design"), model=one_of("gmm", "mor"),
        calibrate=Given(False, "on other designs: print the constants of the prediction"),
        file=Given(Path("plan.jsonl"), "where finished designs are kept", kind=Path),
    )  # fmt: skip
    kept = [json.loads(line) for line in arguments.file.read_text().splitlines()] if arguments.file.exists() else []
    first = FOR_CALIBRATION if arguments.calibrate else 0
    results = []
    for number in range(first, first + arguments.designs):
        key = {"design": asdict(random_design(number, arguments.model)), "seeds": arguments.seeds}
        found = next((line for line in kept if {name: line[name] for name in key} == key), None)
        if found is None:
            found = key | {"errors": [simulated(Design(**key["design"]), seed) for seed in range(arguments.seeds)]}
            with arguments.file.open("a") as file:
                file.write(json.dumps(found) + "\n")
        results.append(found)
    (calibrate if arguments.calibrate else compare)(results)


if __name__ == "__main__":
    main()
