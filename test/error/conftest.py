"""Wrong programs: .air files (see test/support/air_files.py) and Python tests, named after their codes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from air_files import pytest_collect_file  # noqa: F401
