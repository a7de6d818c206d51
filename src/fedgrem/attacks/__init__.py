"""An attack library for mixtures: what bad sites may do to a fit, on rows and on messages. See docs/attacks.md."""

from fedgrem.attacks.base import Divided, MessageAttack, Only, Scene, Together
from fedgrem.attacks.engine import Attacked, RefusedError, fit_attacked
from fedgrem.attacks.registry import ATTACKS, Entry
from fedgrem.attacks.rows import RowAttack, SiteRows, attack_rows

__all__ = [
    "ATTACKS",
    "Attacked",
    "Divided",
    "Entry",
    "MessageAttack",
    "Only",
    "RefusedError",
    "RowAttack",
    "Scene",
    "SiteRows",
    "Together",
    "attack_rows",
    "fit_attacked",
]
