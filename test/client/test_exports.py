"""What libabele shows of itself: its API and what the Python module uses, nothing of LibTorch or of inner layers."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "python" / "abele" / "libabele.so"


def symbols(*options: str) -> set[str]:
    done = subprocess.run(
        ["nm", "-D", "-C", *options, str(LIBRARY)], stdout=subprocess.PIPE, text=True, check=True, env=os.environ
    )
    return {line.split(maxsplit=2)[2] for line in done.stdout.splitlines() if len(line.split(maxsplit=2)) == 3}


@pytest.fixture(scope="module")
def exported() -> set[str]:
    if shutil.which("nm") is None or not LIBRARY.exists():
        pytest.skip("needs nm and a library beside the Python package")
    return symbols("--defined-only")


def test_nothing_of_inner_layers_or_other_libraries(exported):
    inner = re.compile(r"^(?!.*(abele::))|abele::(passes|split|runtime|kernels|memory|collective|device)::")
    assert not [name for name in exported if inner.search(name.partition("(")[0])]
    assert len(exported) < 700


def test_what_the_headers_declare_is_there(exported):
    headers = "\n".join(path.read_text() for path in (ROOT / "include" / "abele").glob("*.h"))
    functions = set(re.findall(r"^ABELE_API [^;{=]*?(\w+)\(", headers, re.MULTILINE))
    classes = set(re.findall(r"^class ABELE_API (\w+)", headers, re.MULTILINE))
    assert len(functions) > 25 and len(classes) > 10
    names = {re.sub(r"\(.*|\[abi:.*", "", name) for name in exported}
    last = {name.rsplit("::", 1)[-1] for name in names}
    assert functions <= last
    owners = {part for name in names for part in name.split("::")}
    assert classes - {"InferenceModel"} <= owners  # that one only inherits
    for kind in ("Error", "UserError", "DeviceError", "InternalError"):
        assert f"typeinfo for abele::{kind}" in exported
