"""The list of changes and the container's recipe name things that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_version_of_the_headers_has_a_section_and_it_is_the_first():
    numbers = re.findall(r"ABELE_VERSION_\w+ (\d+)", (ROOT / "include" / "abele" / "version.h").read_text())
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert sections[0] == ".".join(numbers)
    assert sections == sorted(sections, key=lambda text: [int(part) for part in text.split(".")], reverse=True)


def test_links_of_the_changes_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)", (ROOT / "CHANGELOG.md").read_text()):
        assert (ROOT / target).exists(), target


def test_the_container_is_made_of_what_is_there():
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    copied = [line.split()[1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert copied and all((ROOT / name).exists() for name in copied)
    # ./dev setup expects these, or would search for them without a list of packages.
    (installed,) = [line for line in lines if line.startswith("RUN apt-get") and "g++" in line]
    assert {"g++", "git", "python3-venv", "python3-dev"} <= set(installed.split())
    assert re.search(r"^scikit-build-core==", (ROOT / "requirements.txt").read_text(), re.M)
