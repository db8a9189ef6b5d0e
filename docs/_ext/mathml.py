"""Formulas become MathML when the pages are built; a formula that cannot be translated is a warning."""

import html
import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

logger = logging.getLogger(__name__)

SPELLING = {
    r"\\(begin|end)\{align\*?\}": r"\\\1{aligned}",
    r"\\[bB]igg?[lrm]?(?![A-Za-z])": "",  # the size of brackets is left to the browser
}


def translated(node: nodes.Element, *, block: bool) -> str:
    formula = node.astext()
    for pattern, spelled in SPELLING.items():
        formula = re.sub(pattern, spelled, formula)
    try:
        return tex2mathml(formula, as_block=block)
    except MathError as error:
        logger.warning("cannot translate the formula %r: %s", formula, error, location=node)
        return f"<code>{html.escape(formula)}</code>"


def inline(page, node):
    page.body.append(translated(node, block=False))
    raise nodes.SkipNode


def display(page, node):
    page.body += ['<div class="math">', translated(node, block=True), "</div>\n"]
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
