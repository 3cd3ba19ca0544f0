"""gen_figures.py: each row is of the newest file that has it, for each processor, and --check notices a stale page."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import gen_figures  # noqa: E402


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(gen_figures, "RESULTS", tmp_path)
    monkeypatch.setattr(gen_figures, "PAGE", tmp_path / "figures.md")
    monkeypatch.setattr(gen_figures, "PERFORMANCE", tmp_path / "performance.md")
    (tmp_path / "performance.md").write_text(f"before\n{gen_figures.BEGIN}old\n{gen_figures.END}\nafter\n")
    return tmp_path


def write(folder, name, date, ratios, processor="P", names=gen_figures.WORKLOADS, **more):
    workloads = {
        workload: {setup: {"ratio": ratio, "ms": 10 * ratio, **more} for setup, ratio in ratios.items()}
        for workload in names
    }
    data = {"machine": {"processor": processor}, "date": date, "workloads": workloads}
    (folder / f"{name}.json").write_text(json.dumps(data))


def rows(text):
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {(line[0], line[1]): line[2:] for line in lines[1:]}


def test_the_newest_file_of_each_row_and_processor(results):
    write(results, "smoke-2026-01-01", "2026-01-01T10:00", {"1x2": 0.9, "2x1": 0.8})
    write(results, "smoke-2026-01-02-again", "2026-01-02T09:00", {"1x2": 0.7})
    write(results, "smoke-2025-01-01-other", "2025-01-01T09:00", {"1x2": 0.6}, processor="Q")
    found = rows(gen_figures.page())
    assert found["one device of 2 threads", "P"] == ["0.700", *["0.70"] * 5, "smoke-2026-01-02-again"]
    assert found["two devices of 1 thread", "P"][-1] == "smoke-2026-01-01"
    assert found["one device of 2 threads", "Q"][-1] == "smoke-2025-01-01-other"


def test_the_best_peer_and_losses_that_differ(results):
    write(results, "smoke-2026-01-01", "2026", {"auto": 0.6, "compile": 0.8, "ddp": 1.0}, same_losses=False)
    found = rows(gen_figures.page())
    assert found['`devices("measured")`, to the best peer', "P"][:1] == ["0.750"]
    assert found[f'`devices("measured")` (losses of {", ".join(gen_figures.WORKLOADS)} differ)', "P"][:1] == ["0.600"]
    assert found["torch.compile", "P"][:1] == ["0.800"]


def test_the_overhead_is_last_and_in_no_mean(results):
    write(results, "smoke-2026-01-01", "2026", {"1x2": 0.8})
    file = results / "smoke-2026-01-01.json"
    data = json.loads(file.read_text())
    data["workloads"]["deep-narrow"]["1x2"]["ratio"] = 0.1
    file.write_text(json.dumps(data))
    assert rows(gen_figures.page())["one device of 2 threads", "P"] == ["0.800", *["0.80"] * 4, "0.10", file.stem]


def test_published_models_have_a_table_of_their_own(results):
    write(results, "smoke-2026-01-01", "2026", {"1x2": 0.6})
    write(results, "smoke-published-2026-01-01", "2026", {"1x2": 0.9}, names=gen_figures.PUBLISHED)
    first, second = gen_figures.page().split("## A training step of published models\n")
    assert rows(first)["one device of 2 threads", "P"][0] == "0.600"
    assert second.startswith("`./dev bench smoke --workloads published`")
    assert rows(second)["one device of 2 threads", "P"][0] == "0.900"


def test_a_file_without_all_workloads_gives_no_row(results):
    write(results, "smoke-2026-01-01", "2026", {"1x2": 0.6})
    data = json.loads((results / "smoke-2026-01-01.json").read_text())
    del data["workloads"]["lstm"]
    (results / "smoke-2026-01-02.json").write_text(json.dumps({**data, "date": "2027"}))
    assert rows(gen_figures.page())["one device of 2 threads", "P"][-1] == "smoke-2026-01-01"


PLACEMENTS = {"auto": 0.6, "auto/fast": 0.5, "1x2": 0.8, "2x1": 0.75, "2x1/turns": 0.6}
OF_A_STEP = {"taken": "2x1", "peak_mib": 90, "eager_peak_mib": 100}


def test_the_table_of_what_limits_each_workload(results):
    write(results, "smoke-2026-01-02", "2026-01-02", PLACEMENTS, **OF_A_STEP)
    write(results, "smoke-2026-01-01-peers", "2026-01-01", {"auto": 0.7, "compile": 1.4, "ddp": 0.875}, **OF_A_STEP)
    write(results, "smoke-2026-01-03-other", "2025-01-03", PLACEMENTS, processor="Q", **OF_A_STEP)
    machine = {"machine": {"processor": "P"}, "date": "2026"}
    operators = {"forward aten::mm": {"ns": 60}, "backward aten::attention": {"ns": 30}, "update x": {"ns": 10}}
    limit = {"lstm": {"1x2": {"exact": {"share": 0.95, "operators": operators}}}}
    (results / "limit-2026-01-01.json").write_text(json.dumps({**machine, "workloads": limit}))
    rate = {"lstm": {"gflop": 1, "share": 0.5}}
    (results / "roofline-2026-01-01.json").write_text(json.dumps({**machine, "workloads": rate}))
    page = gen_figures.performance()
    assert "\n| lstm | 0.60 | 0.50 | 0.80 | 0.25 | 0.90 | 0.50 | 0.95 | 60 | 30 | 10 |\n" in page
    assert "\n| bert-mini | 0.60 | 0.50 | 0.80 | 0.25 | 0.90 |  |  |  |  |  |\n" in page
    assert "\n| **small models** | **0.600** | **0.500** |" in page
    assert "smoke-2026-01-01-peers.json, smoke-2026-01-02.json." in page and "published" not in page


def test_a_processor_without_all_levels_gives_no_row_of_what_limits(results):
    write(results, "smoke-2026-01-01", "2026-01-01T10:00", {"1x2": 0.9})
    assert "| workload | exact |" in gen_figures.performance() and "**" not in gen_figures.performance()


def test_check_notices_a_stale_page(results, monkeypatch):
    write(results, "smoke-2026-01-01", "2026", PLACEMENTS, **OF_A_STEP)
    monkeypatch.setattr(sys, "argv", ["gen_figures.py"])
    gen_figures.main()
    performance = (results / "performance.md").read_text()
    assert performance.startswith("before\n") and performance.endswith("\nafter\n") and "old" not in performance
    assert "| bert-mini | 0.60 | 0.50 |" in performance
    monkeypatch.setattr(sys, "argv", ["gen_figures.py", "--check"])
    gen_figures.main()
    write(results, "smoke-2026-01-02", "2027", {"1x2": 0.5})
    with pytest.raises(SystemExit, match="stale"):
        gen_figures.main()


def test_the_page_of_the_tree_is_current():
    checked = subprocess.run([sys.executable, ROOT / "scripts" / "gen_figures.py", "--check"], check=False)
    assert checked.returncode == 0
