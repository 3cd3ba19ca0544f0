"""Every error has a wrong program named after it here, or a unit test where no Python program reaches it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Codes that need a program in C++, damaged bytes or a failing device, and the test that has it. No test can trigger
# E0001: it means a broken invariant.
TESTED_ELSEWHERE = {
    "E0105": "test/unit/capture/program_test.cc",
    "E0106": "test/unit/capture/program_test.cc",
    "E0107": "test/unit/capture/program_test.cc",
    "E0201": "test/unit/base/type_test.cc",
    "E0403": "test/unit/plan/plan_test.cc",
    "E0501": "test/unit/exe/codec_test.cc",
    "E0602": "test/unit/session/errors_test.cc",
    "E0603": "test/unit/runtime/runtime_test.cc",
}
CODES = re.findall(r"^ABELE_ERROR\((E\d+)", (ROOT / "include/abele/errors.def").read_text(), re.M)


@pytest.mark.parametrize("code", [code for code in CODES if code != "E0001"])
def test_code(code):
    if code in TESTED_ELSEWHERE:
        assert code in (ROOT / TESTED_ELSEWHERE[code]).read_text()
        return
    programs = [path for path in Path(__file__).parent.iterdir() if re.match(rf"(test_)?{code}_", path.name)]
    assert programs, f"{code} has no program in test/error/"
    assert all(code in path.read_text() for path in programs)
