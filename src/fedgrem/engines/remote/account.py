"""A site's log in words: one page per fit, for who answers for the rows."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fedgrem.engines.remote.fields import SUM_TITLES, TITLES


class Line(NamedTuple):
    """One kind of question in a fit."""

    title: str
    asked: int
    answered: int
    numbers: int
    """That left in answer, all together."""
    held_back: int
    """Answers that left out components of too few rows."""
    masked: int = 0
    """Numbers that left masked, and open in a sum only."""


class Page(NamedTuple):
    """One fit."""

    run: str
    begun: str
    about: str
    """What is fitted, and the site's rules at that time."""
    lines: list[Line]
    refusals: list[str]
    """When, what and why; the same again is counted."""
    keys: str = ""
    """Of a fit of sums, the fingerprint of all sites' keys."""
    far: int = 0
    """Orders about parameters far from these rows, of which nothing was said."""

    @property
    def numbers(self) -> int:
        """That left in this fit."""
        return sum(line.numbers for line in self.lines)

    @property
    def masked(self) -> int:
        """Likewise masked."""
        return sum(line.masked for line in self.lines)


def pages(records: Iterable[dict[str, Any]]) -> list[Page]:
    """One page per fit, oldest first; what was refused before any fit began is on a page of its fit, too."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if "run" in record:
            runs.setdefault(record["run"], []).append(record)
    return [_page(run, mine) for run, mine in runs.items()]


def _page(run: str, records: list[dict[str, Any]]) -> Page:
    begun = [record for record in records if record["kind"] == "fit"]
    lines: dict[str, Line] = {}
    for record in records:
        if record["kind"] in ("order", "reply"):
            title = (TITLES | SUM_TITLES).get(record["task"], f"{record['task']!r}, which is no task")
            line = lines.get(title, Line(title, 0, 0, 0, 0))
            if record["kind"] == "order":
                line = line._replace(asked=line.asked + 1)
            else:
                numbers = sum(np.size(value) for value in record["sent"].values())
                few = line.held_back + ("held_back" in record)
                masked = line.masked + record.get("masked", 0)
                line = line._replace(
                    answered=line.answered + 1, numbers=line.numbers + numbers, held_back=few, masked=masked
                )
            lines[title] = line
    about = _about(begun[0]) if begun else "not begun"
    keys = next((record["asked"]["keys"] for record in records if "keys" in record.get("asked", {})), "")
    far = sum("far" in record for record in records)
    return Page(run, records[0]["time"], about, list(lines.values()), _refusals(records), keys, far)


def _about(record: dict[str, Any]) -> str:
    spec = record["spec"]
    columns = "its own columns" if spec["columns"] is None else ", ".join(spec["columns"])
    family, algorithm = spec["family"]["name"], spec["algorithm"]["name"]
    return (
        f"{spec['n_components']} component(s) of the family {family}, by {algorithm}, in at most {spec['max_rounds']} "
        f"rounds, on {columns}; {record['n_rows']:,} rows; floor {record['floor']:g} rows, at most "
        f"{record['fits_per_day']} fits a day"
    ) + _budget(record)


def _budget(record: dict[str, Any]) -> str:
    """What a private fit cost, and what that leaves."""
    if record.get("epsilon") is None:
        return ""
    words = f"; private, with epsilon {record['epsilon']:g} and delta {record['delta']:g}"
    if "spent" in record:
        words += f", so that {record['spent']:.4g} of {record['total_epsilon']:g} are spent"
    return words


def _refusals(records: list[dict[str, Any]]) -> list[str]:
    counted: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if record["kind"] == "refusal":
            counted.setdefault((record["task"], record["why"]), []).append(record["time"])
    return [
        f"{times[0]} {task!r}: {why}" + f" ({len(times)} times)" * (len(times) > 1)
        for (task, why), times in counted.items()
    ]
