"""Options of the whole suite."""


def pytest_addoption(parser):
    parser.addoption(
        "--matrix",
        choices=("part", "full"),
        default="part",
        help="test/parity/test_matrix.py: every combination, or a part with every three settings (default)",
    )
