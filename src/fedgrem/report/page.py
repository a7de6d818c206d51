"""The pieces of a page that needs nothing else: its frame and style, tables, facts, marked lines and drawings."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root{color-scheme:light}*{box-sizing:border-box}
body{margin:0;background:#fff;color:#1d2329;font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:68rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 .25rem}h2{font-size:1.2rem;margin:2.5rem 0 .5rem}
.lead,figcaption,.note{color:#55606b}.lead{margin:0 0 1.5rem;max-width:46rem}figure{margin:1.5rem 0}
figcaption,.note{font-size:.875rem;max-width:50rem}.scroll{overflow-x:auto;margin:.5rem 0}
.picture svg{display:block;width:100%;height:auto;min-width:40rem}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .7rem;text-align:right;white-space:pre;border-bottom:1px solid #e6e9ec}
th{border-bottom:2px solid #c3cad1;font-weight:600}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:#fff}
td b{font-weight:700}ul.verdicts{list-style:none;padding:0;margin:0;max-width:56rem}
ul.verdicts li{padding:.55rem 0 .55rem 6.5rem;border-bottom:1px solid #eef0f2;position:relative}
.mark{position:absolute;left:0;font-size:.8rem;font-weight:600;padding:.1rem .5rem;border-radius:.25rem}
.yes{background:#e2f0ea;color:#00513a}.no{background:#fbe9df;color:#8a3b00}.open{background:#eef0f2}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1.25rem;font-size:.9rem;margin:0}
dt{color:#55606b}dd{margin:0;overflow-wrap:anywhere}code{font:.875em ui-monospace,Menlo,Consolas,monospace}
@media(max-width:40rem){main{padding:1.25rem .9rem 3rem}h1{font-size:1.4rem}ul.verdicts li{padding-left:0}
.mark{position:static;display:inline-block;margin-right:.5rem}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5rem}}
"""
MOST_DRAWING = 400_000
"""Characters of a drawing beyond which a picture of dots is smaller."""


def document(title: str, parts: Sequence[str], style: str = "") -> str:
    """The whole page: ``parts`` are finished markup, ``style`` is added to the common one."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)} · fedgrem</title><style>{STYLE}{style}</style></head>'
        f"<body><main>\n{chr(10).join(parts)}\n</main></body></html>\n"
    )


def table_markup(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of finished cells, the first line its head; it scrolls where it is too wide."""
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{"".join(head)}</tr></thead><tbody>{body}</tbody></table></div>'


def fact_list(facts: Mapping[str, str]) -> str:
    """Names and what belongs to them, as finished markup."""
    return "<dl>" + "".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in facts.items()) + "</dl>"


def marked_list(lines: Sequence[tuple[str, str, str]]) -> str:
    """Lines of (kind, word, markup): a coloured word, then what it stands for. The kinds are yes, no and open."""
    items = (f'<li><span class="mark {kind}">{escape(word)}</span>{line}</li>' for kind, word, line in lines)
    return f'<ul class="verdicts">{"".join(items)}</ul>'


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
