"""Every error of these layers has a wrong program named after it here, or a unit test where no program reaches it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("E02", "E03", "E09")
# Codes that no text and no tool argument can cause, and the test that does.
TESTED_ELSEWHERE = {"E0201": "test/unit/base/type_test.cc"}
CODES = re.findall(r"^ABELE_ERROR\((E\d+)", (ROOT / "src/base/errors.def").read_text(), re.M)


@pytest.mark.parametrize("code", [code for code in CODES if code.startswith(LAYERS)])
def test_code(code):
    if code in TESTED_ELSEWHERE:
        assert f"ErrorCode::{code}" in (ROOT / TESTED_ELSEWHERE[code]).read_text()
        return
    programs = [path for path in Path(__file__).parent.iterdir() if re.match(rf"(test_)?{code}_", path.name)]
    assert programs, f"{code} has no program in test/error/"
    assert all(code in path.read_text() for path in programs)
