"""Python has a phrase for each that messages show in C++ (src/bind/phrases.def)."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[3]
TEXT = r'"((?:[^"\\]|\\.)*)"'


def test_each_phrase_has_one_row():
    shown, literals = set(), set()
    for path in [*ROOT.glob("src/**/*.cc"), *ROOT.glob("src/**/*.h")]:
        source = path.read_text()
        for call in re.findall(rf"inLanguage\(((?:\s*{TEXT})+)\)", source):
            shown.add("".join(re.findall(TEXT, call[0])))
        literals.update(re.findall(TEXT, source))
    table = (ROOT / "src/bind/phrases.def").read_text()
    rows = [cpp for cpp, _ in re.findall(rf"^ABELE_PHRASE\({TEXT}, {TEXT}\)$", table, re.MULTILINE)]
    assert len(rows) == table.count("\nABELE_PHRASE(") == len(set(rows)) and len(shown) > 50
    assert not shown - set(rows)
    assert not set(rows) - shown - literals
