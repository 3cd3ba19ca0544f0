"""Golden tests are .air files; see test/support/air_files.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from air_files import pytest_collect_file  # noqa: F401


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files marked # GENERATED")
