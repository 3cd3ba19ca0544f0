"""E0712: a program of a file, taken over by another model; a file where a folder is needed; files without text."""

import os

import poptorch
import pytest
import torch


def test_error(tmp_path):
    executor = poptorch.inferenceModel(torch.nn.Linear(3, 2))
    executor.compile(torch.zeros(1, 3))
    executor.save(tmp_path / "file")
    with pytest.raises(poptorch.Error, match="E0712 file: the program was compiled for another model"):
        poptorch.inferenceModel(torch.nn.Linear(4, 2)).loadExecutable(tmp_path / "file")
    for parent in ("file", "file/none"):
        with pytest.raises(poptorch.Error, match=r"E0712 file: a file cannot be written[^$]*file/") as raised:
            executor.save(tmp_path / parent / "x.poptorch")
        assert raised.value.code == "E0712" and isinstance(raised.value, AssertionError) == (parent == "file")


def test_files_of_options_that_are_no_text(tmp_path):
    path = tmp_path / "options.cfg"

    def refused():
        with pytest.raises(poptorch.Error, match="E0712 file: ") as raised:
            poptorch.Options().loadFromFile(path)
        assert "  try  " in str(raised.value)
        return str(raised.value)

    path.write_bytes(b'deviceIterations(2)\nlogDir("\xee")\n')
    text = refused()
    assert "byte 0xee at 28" in text and str(path) in text and "UTF-8" in text
    path.unlink()
    path.symlink_to(path)
    refused()
    path.unlink()
    os.mkfifo(path)
    refused()
