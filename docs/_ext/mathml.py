"""Formulas become MathML when the pages are built; a formula that cannot be translated is a warning."""

from docutils import nodes
from docutils.utils.math import MathError, wrap_math_code
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

logger = logging.getLogger(__name__)


def translated(formula: str, node: nodes.Element, *, block: bool) -> str:
    try:
        return tex2mathml(wrap_math_code(formula, as_block=True) if block else formula, as_block=block)
    except MathError as error:
        logger.warning("cannot translate the formula %r: %s", formula, error, location=node)
        return f"<code>{formula}</code>"


def inline(page, node):
    page.body.append(translated(node.astext(), node, block=False))
    raise nodes.SkipNode


def display(page, node):
    page.body.append(f'<div class="math">{translated(node.astext(), node, block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
