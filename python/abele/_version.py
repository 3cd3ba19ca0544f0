"""Versions. Written by scripts/gen_tables.py from include/abele/version.h."""

__version__ = "0.1.0"
# The version that poptorch reports: the interface and its implementation. Files hold it, and it is compared exactly.
POPTORCH_VERSION = "3.4.0-abele0.1"
