"""docs/compatibility.md lists every name, and names only C++ declarations that exist."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def script():
    spec = importlib.util.spec_from_file_location("gen_compatibility", ROOT / "scripts" / "gen_compatibility.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_agrees_with_the_headers():
    assert script().check() == []


def test_a_claim_without_a_declaration_is_noticed(tmp_path):
    module = script()
    module.PAGE = tmp_path / "page.md"
    text = (ROOT / "docs" / "compatibility.md").read_text()
    module.PAGE.write_text(text.replace("`options.h: randomSeed`", "`options.h: randomSeeds`"))
    assert any("Options.randomSeed" in problem for problem in module.check())
    module.PAGE.write_text("\n".join(line for line in text.splitlines() if "`Options.randomSeed`" not in line))
    assert module.check()


def test_declarations_are_found_and_parameters_are_not():
    module = script()
    assert module.cpp_declaration("Options.deviceIterations") == "options.h: deviceIterations"
    assert module.cpp_declaration("poptorch.PoplarExecutor") == "model.h: TrainingModel"
    assert module.cpp_declaration("poptorch.identity_loss") == "annotate.h: identityLoss"
    assert module.cpp_declaration("_Popart.options") == "options.h: get"  # another name, said in the script
    assert module.cpp_declaration("poptorch.BlockId") is None
