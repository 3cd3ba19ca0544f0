"""check_references.py finds sections of the specification, and targets of links, that are not there."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import check_references  # noqa: E402


@pytest.mark.parametrize(
    ("comment", "missing"),
    [
        ("Source: spec executor.md, section 7.1.", []),
        ("Source: spec clients.md, item 21; environment.md, section 9.", []),
        ("Source: spec options.md sections 7 and 8, annotations.md section 2.", []),
        ("See docs/options.md, 99 rows.", []),
        ("Source: executor.md 99.", ["executor.md has no section 99"]),
        ("Source: spec data.md, sections 1 to 3.", []),
        ("Source: spec data.md, sections 1 to 77; tools.md.", ["data.md has no section 77"]),
        ("Source: spec clients.md, item 99.", ["clients.md has no section 99"]),
    ],
)
def test_sections_of_the_specification(comment, missing):
    pages = [page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")]
    references = check_references.References(pages)
    references.comments["src/ir/example.h"] = comment
    found = references.findings_of("src/ir/example.h")
    assert [finding.partition("docs/spec/")[2] for finding in found] == missing


@pytest.mark.parametrize(
    ("link", "leads_somewhere"),
    [
        ("[a](plan.md)", True),
        ("[a](plan.md#the-text-form-of-a-plan)", True),
        ("[a](guide/blocks.md#marking-blocks)", True),
        ("[a](../README.md), [b](#values), [c](https://example.org/none.md)", True),
        ("`[a](none.md)`", True),
        ("[a](none.md)", False),
        ("[a](plan.md#none)", False),
        ("[a](#none)", False),
    ],
)
def test_links_between_documents(link, leads_somewhere):
    assert (check_references.link_findings("docs/ir.md", f"text, {link}") == []) == leads_somewhere


def test_rows_that_tests_name_have_a_section():
    assert check_references.rows_without_section() == []
