"""Sphinx reads the Markdown of this folder (MyST). Nothing a page needs is fetched when it is read.

Why Sphinx: it is maintained, makes every broken reference an error, and lets the two small extensions of
`_ext` do what matters here. `public` shows exported names with docstrings read as Markdown, so that an
equation in a docstring needs no escapes; `mathml` turns formulas into MathML when the pages are built, so
that browsers show them without a script. Furo has a light and a dark face and brings its own fonts.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import fokker  # noqa: E402

project = "fokker"
author = "The fokker developers"
version = release = fokker.__version__

extensions = ["myst_parser", "public", "mathml"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"fokker {version}"
html_static_path = ["_static"]
html_css_files = ["math.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
