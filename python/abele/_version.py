"""Version of the package: compared exactly when files are loaded."""

__version__ = "3.4.0-abele0.1"
