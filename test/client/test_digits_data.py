"""The digits of the examples: the split, the scaling, and an order that any language can repeat."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "python"))
import digits_data


def test_every_fifth_digit_is_held_out():
    (train, train_labels), (test, test_labels) = digits_data.load()
    assert train.shape == (1438, 1, 8, 8) and train_labels.shape == (1438,)
    assert test.shape == (359, 1, 8, 8) and test_labels.shape == (359,)
    assert train_labels[:4].tolist() == [0, 1, 2, 3] and test_labels[0] == 4
    assert torch.bincount(torch.cat([train_labels, test_labels])).tolist() == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]


def test_training_pixels_are_standardised():
    (train, _), _ = digits_data.load()
    assert abs(train.double().mean().item()) < 1e-6
    assert abs(train.double().std(unbiased=False).item() - 1) < 1e-6


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "digits.bin"
    path.write_bytes(digits_data.FILE.read_bytes()[:-1])
    with pytest.raises(ValueError, match="expected 116805 bytes, found 116804"):
        digits_data.load(path)


def test_order_is_the_one_that_other_languages_draw():
    order = digits_data.Shuffled(8, seed=1)
    first, second = list(order), list(order)
    assert sorted(first) == sorted(second) == list(range(8))
    assert (first, second) == ([7, 4, 3, 2, 5, 0, 1, 6], [4, 6, 7, 3, 2, 5, 0, 1])
