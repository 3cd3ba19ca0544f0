"""A model on the meta device in several processes: each materialises, updates and saves what its devices have."""

import json
import pathlib
import sys

import abele
import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import meta_program
from launch import HERE, poprun


def _run(folder, how, processes, *more, **variables):
    script = HERE / "meta_program.py"
    done = poprun("--num-instances", processes, sys.executable, script, folder, how, *more, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"{how}-{process}.pt") for process in range(processes)]


def _start(folder, width=16):
    model = meta_program.Net(width)
    abele.init_weights(model, 3)
    abele.save_weights(folder / "start", model)


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("how", ["files", "seed"])
def test_the_bits_of_an_ordinary_model_in_one_process(tmp_path, how, processes):
    _start(tmp_path)
    found = _run(tmp_path, how, processes)
    (tmp_path / "alone").mkdir()
    _start(tmp_path / "alone")
    alone = meta_program.run(tmp_path / "alone", how, 16)
    for result in found:
        assert all(map(torch.equal, result["losses"], alone["losses"]))
        assert result["whole"].keys() == alone["state"].keys()
        assert all(torch.equal(result["whole"][name], value) for name, value in alone["state"].items())
    saved = meta_program.Net(16)
    abele.load_weights(tmp_path / f"{how}-out", saved)
    for name, value in alone["state"].items():
        assert torch.equal(saved.state_dict()[name], value), name
    own = meta_program.STAGES // processes
    for process, result in enumerate(found):
        blocks = {int(name.split(".")[1]) for name in result["meta"] if name.startswith("blocks")}
        assert blocks == set(range(meta_program.STAGES)) - set(range(own * process, own * (process + 1)))
        assert ("embed.weight" in result["meta"]) == (0 < process < processes - 1)
        assert ("unused.weight" in result["meta"]) == (process > 0)


def test_processes_that_share_a_stage_hold_new_weights(tmp_path):
    _start(tmp_path)
    found = _run(tmp_path, "divided", 4, 512)
    (tmp_path / "alone").mkdir()
    alone = meta_program.run(tmp_path / "alone", "divided", 512)
    for result in found:
        assert all(map(torch.equal, result["losses"], alone["losses"]))
        assert all(torch.equal(result["whole"][name], value) for name, value in alone["state"].items())
        assert not result["old"]


def test_each_process_writes_a_file(tmp_path):
    _start(tmp_path)
    _run(tmp_path, "files", 4)
    index = json.loads((tmp_path / "files-out" / "model.safetensors.index.json").read_text())
    files = [f"model-{n:05}-of-00004.safetensors" for n in range(1, 5)]
    assert sorted(path.name for path in (tmp_path / "files-out").glob("*.safetensors")) == files
    for stage, file in enumerate(files):
        held = abele.load_tensors(tmp_path / "files-out" / file)
        assert {name for name, own in index["weight_map"].items() if own == file} == set(held)
        assert any(name.startswith(f"blocks.{stage}.") for name in held)
    model = meta_program.Net(16)
    (tmp_path / "files-out" / files[2]).write_bytes((tmp_path / "files-out" / files[3]).read_bytes())
    with pytest.raises(abele.Error, match="E0501"):
        abele.load_weights(tmp_path / "files-out", model)


def test_a_model_that_no_process_could_hold(tmp_path):
    """Weights, gradients and two moments of 12 layers of 4 MiB: each of four processes stays below a third of them,
    beside what a process needs for a small model (libraries)."""
    peaks, more = {}, []
    for width in (16, 1024):
        folder = tmp_path / str(width)
        folder.mkdir()
        _start(folder, width)
        results = _run(folder, "files", 4, width)
        peaks[width] = [result["peak"] for result in results]
        more = [result["peak_of_checkpoint"] - result["peak"] for result in results]
    whole = 4 * sum(4 * p.numel() for p in meta_program.Net(1024).parameters())
    for small, large in zip(peaks[16], peaks[1024], strict=True):
        assert large - small < whole / 3, (small, large, whole)
    assert max(more) < whole / 4, (more, whole)  # a checkpoint: some tensors, not the state of all stages
