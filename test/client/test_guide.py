"""The Python blocks of each page of the user guide run, in order, as one program."""

import importlib.util
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from ports import free_port

pytestmark = pytest.mark.own_process  # a page may call torch.compile, which changes torch for good
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted((DOCS / "guide").glob("*.md"))
# Pages whose programs take packages that need not be there.
NEEDS = {"keras": ("keras",), "trainers": ("lightning", "transformers", "accelerate")}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def program(page: Path) -> str:
    """The blocks of a page at the lines where they stand, so that errors name the page's line."""
    text, lines = page.read_text(), []
    for match in BLOCK.finditer(text):
        lines += [""] * (text.count("\n", 0, match.start(1)) - len(lines))
        lines += match.group(1).splitlines()
    return "\n".join(lines)


@pytest.mark.parametrize("page", [page for page in PAGES if program(page)], ids=lambda page: page.stem)
def test_blocks_run(page, tmp_path, monkeypatch):
    missing = [name for name in NEEDS.get(page.stem, ()) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (requirements-{page.stem}.txt)")
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"guide_{page.stem}")  # can be imported, so that its classes can be pickled
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(program(page), page, "exec"), vars(module))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)  # C++ has [&](x) too
    for target in re.findall(r"\]\(([^)#:]+)", prose):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_index_names_every_page():
    index = (DOCS / "guide" / "index.md").read_text()
    assert [page.name for page in PAGES if page.stem != "index" and f"({page.name})" not in index] == []


def test_torch_pipelining_and_abele_print_the_same_loss(tmp_path):
    """The page's other program, marked py, runs in two processes as it says."""
    text = (DOCS / "guide" / "from_torch_pipelining.md").read_text()
    common, *ours = BLOCK.findall(text)
    (theirs,) = re.findall(r"^```py\n(.*?)^```$", text, re.M | re.S)
    (tmp_path / "theirs.py").write_text(common + theirs)
    (tmp_path / "ours.py").write_text(common + "".join(ours))
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    losses = []
    for words in ([*launch, f"--master-port={free_port()}", "theirs.py"], ["ours.py"]):
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (loss,) = re.findall(r"^loss (\S+)$", done.stdout, re.M)
        losses.append(float(loss))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_pictures_are_those_of_todays_simulator():
    command = [sys.executable, DOCS.parent / "scripts" / "draw_pictures.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = "".join(page.read_text() for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"])
    pictures = {path.name for path in (DOCS / "pictures").glob("*.svg")}
    assert pictures and pictures == set(re.findall(r"\(\S*pictures/(\w+\.svg)\)", pages))
