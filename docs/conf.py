"""How Sphinx makes the site: `make docs`.

The source folder is the repository's root, so a link between files means the same here and on GitHub, and README,
CONTRIBUTING, CHANGELOG and the notebooks are pages as they are. Nothing is executed: tests/test_docs.py and
tests/test_notebooks.py do that.
"""

import aotkit

project = "aotkit"
author = copyright = "the authors of aotkit"
release = aotkit.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "docs/**", "notebooks/*.ipynb", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "aotkit/torch_private/names.md",
]  # fmt: skip
exclude_patterns = ["docs/_build", ".venv*", "build", "dist"]

# Docstrings are as a terminal shows them: `x` is code, and a link where it is a public name.
default_role = "py:obj"
napoleon_use_ivar = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}

myst_heading_anchors = 3
nb_execution_mode = "off"
nb_merge_streams = True

html_theme = "furo"
html_title = f"aotkit {release}"
html_theme_options = {"light_css_variables": {"code-font-size": "var(--font-size--small--2)"}}  # tables are wide
html_copy_source = False
html_show_sphinx = False
