"""Sphinx: the pages of this folder, and the reference of both packages and of the C++ headers. Run by ./dev docs."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))

project = "Abele"
author = "the authors of Abele"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "breathe"]
html_theme = "furo"
html_title = "Abele"
exclude_patterns = []

myst_heading_anchors = 4
# Pages are read on a forge too: there, links to files of the tree work.
# Each header opens the same namespaces, which are no declarations of their own.
suppress_warnings = ["myst.xref_missing", "duplicate_declaration.cpp"]

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_inherit_docstrings = False
autodoc_typehints = "none"
napoleon_google_docstring = True
napoleon_custom_sections = ["Shapes", "Units", "Threads", "Source", "Requires"]

breathe_projects = {"abele": os.environ.get("ABELE_DOXYGEN_XML", os.path.join(ROOT, "build", "doxygen", "xml"))}
breathe_default_project = "abele"
breathe_default_members = ("members",)
