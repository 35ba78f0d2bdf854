"""How Sphinx makes a site of this folder: `make docs`, warnings as errors. Nothing of envbuilder is imported here."""

import re
from pathlib import Path

_INIT = Path(__file__).parents[1] / "envbuilder/__init__.py"

project = "envbuilder"
release = re.findall(r'__version__ = "(.+?)"', _INIT.read_text(encoding="utf-8"))[0]
extensions = ["myst_parser"]
exclude_patterns = ["requirements.lock"]
myst_heading_anchors = 3
nitpicky = True
html_theme = "furo"
html_title = f"envbuilder-hpc {release}"
html_copy_source = False
html_show_copyright = False
html_last_updated_fmt = None  # the same sources give the same site
# A page that needs nothing from elsewhere: no fonts, no scripts of other hosts.
html_theme_options = {"top_of_page_buttons": []}
