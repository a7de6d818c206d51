"""Pages that need nothing else, from the templates beside this module; and figures as a part of them."""

import base64
import io
import re
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from fedgrem.errors import MissingExtraError
from fedgrem.report.text import count, fixed, listed, signed

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

MOST_DRAWING = 400_000
"""Characters of a drawing beyond which a picture of dots is smaller."""


def render(template: str, **values: Any) -> str:
    """A template with these values, escaped wherever it does not say that they are finished markup."""
    return environment().get_template(template).render(values)


@cache
def environment() -> "Environment":
    """The templates, read once; says how to get jinja2 where it is missing."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise MissingExtraError(
            "pages need jinja2, which is not installed; run: pip install 'fedgrem[report]' (or: pip install jinja2)."
        ) from error
    loader = PackageLoader("fedgrem.report")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"amount": "{:,.12g}".format, "count": count, "fixed": fixed, "listed": listed, "signed": signed}
    return made


def svg(figure: "Figure") -> str:
    """The drawing alone, letters as outlines: it looks the same everywhere and names no address."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with rc_context({"svg.hashsalt": "fedgrem"}):
        figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def inline(drawing: str) -> str:
    """A drawing as part of a page, where its name spaces go without saying."""
    return re.sub(r' xmlns(:xlink)?="[^"]*"', "", drawing)


def picture(figure: "Figure", words: str) -> str:
    """The figure as markup, a drawing if it is not too large; ``words`` tell those who cannot see it what is on it."""
    drawing = re.sub(r'<g id="[^"]*"', "<g", inline(svg(figure)))  # names that nothing refers to, once per figure
    told = escape(words, quote=True)
    if len(drawing) <= MOST_DRAWING:
        return drawing.replace("<svg ", f'<svg role="img" aria-label="{told}" ', 1)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200)
    return f'<img alt="{told}" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode("ascii")}">'
