"""abele.save_checkpoint and load_checkpoint: a run that stops and resumes gives the numbers of one that never
stopped."""

import collections
import json
import random

import abele
import numpy
import poptorch
import pytest
import torch
from abele._native import core


class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.first = torch.nn.Linear(width, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.second = torch.nn.Linear(8, 3)

    def forward(self, x, target):
        x = torch.nn.functional.dropout(self.norm(self.first(x)).relu(), 0.3, self.training)
        return torch.nn.functional.cross_entropy(self.second(x), target)


class Samples(torch.utils.data.Dataset):
    """Draws random numbers of every kind, as augmentation does."""

    def __len__(self):
        return 26

    def __getitem__(self, i):
        noise = torch.rand(()).item() + random.random() + numpy.random.rand()
        return torch.arange(4.0) * (i + 1) / 26 + noise, torch.tensor(i % 3)


class Training:
    """A run of 14 steps in passes of 6, with a scheduler."""

    def __init__(self, seed, make_optimizer=torch.optim.AdamW, front=abele, generator=None, loading=None, **options):
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        self.options = front.Options()
        self.options.deviceIterations(2).randomSeed(3)
        own = None if generator is None else torch.Generator().manual_seed(generator)
        self.loader = front.DataLoader(
            self.options, Samples(), batch_size=2, shuffle=True, generator=own, **(loading or {})
        )
        self.net = Net()
        self.optimizer = make_optimizer(self.net.parameters(), lr=0.05, **options)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 9], 0.5)
        self.model = front.trainingModel(self.net, self.options, optimizer=self.optimizer)
        self.step, self.losses = 0, {}

    def train_to(self, last, folder=None):
        while self.step < last:
            for x, target in self.loader:
                self.losses[self.step] = float(self.model(x, target))
                self.scheduler.step()
                self.model.setOptimizer(self.optimizer)
                self.step += 1
                if self.step == last:
                    if folder is not None:
                        self.save(folder)
                    break
        return self

    def save(self, folder):
        abele.save_checkpoint(folder, self.model, self.loader, step=self.step, scheduler=self.scheduler)

    def load(self, folder):
        found = abele.load_checkpoint(folder, self.model, self.loader, scheduler=self.scheduler)
        self.step = found["step"]
        return self


def _same(whole, resumed, stop):
    assert resumed.losses == {step: loss for step, loss in whole.losses.items() if step >= stop}
    for one in (whole, resumed):
        one.model.copyWeightsToHost()
    expected, found = whole.net.state_dict(), resumed.net.state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert whole.scheduler.get_last_lr() == resumed.scheduler.get_last_lr()
    if isinstance(whole.optimizer, poptorch.optim.SGD):
        return
    states = [one.optimizer.state_dict()["state"] for one in (whole, resumed)]
    assert states[0].keys() == states[1].keys()
    for i, state in states[0].items():
        assert all(torch.equal(torch.as_tensor(state[name]), torch.as_tensor(states[1][i][name])) for name in state)


OWN_SGD = {"make_optimizer": poptorch.optim.SGD, "momentum": 0.9, "loss_scaling": 4.0, "use_combined_accum": False}


@pytest.mark.parametrize(
    ("stop", "how"),
    [
        (1, {}),
        (6, {}),  # the last batch of a pass
        (7, {"generator": 9}),
        (4, {"front": poptorch}),
        (8, OWN_SGD),
        (2, {"make_optimizer": torch.optim.RMSprop, "momentum": 0.5}),
    ],
)
def test_a_run_that_stops_goes_on(tmp_path, stop, how):
    whole = Training(1, **how).train_to(14)
    Training(1, **how).train_to(stop, tmp_path)
    other = {**how, "generator": 11} if "generator" in how else how
    _same(whole, Training(2, **other).load(tmp_path).train_to(14), stop)


@pytest.mark.parametrize(
    ("stop", "mode", "how"),
    [
        (1, abele.DataLoaderMode.Async, {}),
        (6, abele.DataLoaderMode.Async, {}),  # the last batch of a pass
        (8, abele.DataLoaderMode.Async, {"generator": 9}),
        (9, abele.DataLoaderMode.Async, {"load_indefinitely": False}),
        (8, abele.DataLoaderMode.AsyncRebatched, {}),
    ],
)
def test_asynchronous_loaders_go_on(tmp_path, stop, mode, how):
    asynchronous = {"sharing_strategy": abele.SharingStrategy.Fork, "buffer_size": 2}
    generator = how.pop("generator", None)
    loading = {"mode": mode, "async_options": {**asynchronous, **how}}
    if mode == abele.DataLoaderMode.AsyncRebatched:
        loading["rebatched_worker_size"] = 3
    runs = []

    def begun(seed, own):
        runs.append(Training(seed, loading=loading, generator=own))
        return runs[-1]

    try:
        whole = begun(1, generator).train_to(14)
        begun(1, generator).train_to(stop, tmp_path)
        _same(whole, begun(2, generator and 11).load(tmp_path).train_to(14), stop)
    finally:
        for run in runs:
            run.loader.terminate()


def test_an_asynchronous_loader_between_two_passes(tmp_path):
    loading = {
        "mode": abele.DataLoaderMode.Async,
        "async_options": {"sharing_strategy": abele.SharingStrategy.Fork},
    }

    def passes(run, count):
        for _ in range(count):
            for batch in run.loader:
                run.losses[run.step] = float(run.model(*batch))
                run.step += 1
        return run

    whole, before = Training(1, loading=loading), Training(1, loading=loading)
    after = Training(2, loading=loading)
    try:
        passes(whole, 2)
        passes(before, 1).save(tmp_path)
        _same(whole, passes(after.load(tmp_path), 1), 6)
    finally:
        for run in (whole, before, after):
            run.loader.terminate()


class Counted(torch.nn.Module):
    """Keeps notes in addition to its weights."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.notes = {"seen": 0, "parts": [torch.zeros(2), (1, "x")]}

    def forward(self, x):
        return self.linear(x)

    def get_extra_state(self):
        return self.notes

    def set_extra_state(self, state):
        self.notes = state


class Outer(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, target):
        return torch.nn.functional.mse_loss(self.inner(x), target)


def test_extra_states_of_modules(tmp_path):
    def model(inner):
        outer = Outer(inner)
        return outer, abele.trainingModel(outer, optimizer=torch.optim.SGD(outer.parameters(), lr=0.1))

    net, training = model(Counted())
    training(torch.ones(1, 4), torch.ones(1, 3))
    net.inner.notes = {"seen": 7, "parts": [torch.ones(2), (2, "y")]}
    abele.save_checkpoint(tmp_path, training, step=1)
    other, resumed = model(Counted())
    abele.load_checkpoint(tmp_path, resumed)
    assert other.inner.notes["seen"] == 7 and other.inner.notes["parts"][1] == (2, "y")
    assert torch.equal(other.inner.notes["parts"][0], torch.ones(2))
    plain, without = model(torch.nn.Sequential(collections.OrderedDict(linear=torch.nn.Linear(4, 3))))
    before = plain.inner.linear.weight.clone()
    with pytest.raises(abele.Error, match="E0708.*inner"):
        abele.load_checkpoint(tmp_path, without)
    assert torch.equal(plain.inner.linear.weight, before)
    net.inner.notes = {"seen": object()}
    with pytest.raises(abele.Error, match="E0702.*extra state.*object"):
        abele.save_checkpoint(tmp_path, training, step=2)


class Half(torch.nn.Module):
    """The gradients are the values of x."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.half))

    def forward(self, x):
        return abele.identity_loss(self.weight * x, reduction="sum")


@pytest.mark.parametrize("stop", [2, 3, 4, 5])
def test_automatic_loss_scaling_goes_on_within_a_period(tmp_path, stop):
    """The factor is computed at every third update, from the gradients of all three."""
    sizes = [0.5, 12000.0, 0.5, 0.5, 0.5, 12000.0, 0.5, 0.5]

    def begun():
        net, options = Half(), abele.Options()
        options.Training.setAutomaticLossScaling(True)
        options._Popart.set("automaticLossScalingSettings.updatePeriod", 3)
        options._Popart.set("automaticLossScalingSettings.thresholdUpperCountProportion", 0.4)
        return net, abele.trainingModel(net, options, optimizer=abele.optim.SGD(net.parameters(), lr=2.0**-14))

    def scales(model, inputs):
        found = []
        for size in inputs:
            model(torch.full((4,), size, dtype=torch.half))
            found.append(model._native.session().lossScale())
        return found

    net, whole = begun()
    expected = scales(whole, sizes)
    assert len(set(expected)) > 1
    _, before = begun()
    scales(before, sizes[:stop])
    abele.save_checkpoint(tmp_path, before, step=stop)
    resumed, after = begun()
    abele.load_checkpoint(tmp_path, after)
    assert scales(after, sizes[stop:]) == expected[stop:]
    for model in (whole, after):
        model.copyWeightsToHost()
    assert torch.equal(net.weight, resumed.weight)


def test_a_compiled_model_goes_on_too(tmp_path):
    whole = Training(1).train_to(9)
    Training(1).train_to(4, tmp_path)
    other = Training(2).train_to(2)
    other.losses.clear()
    _same(whole, other.load(tmp_path).train_to(9), 4)


def test_a_checkpoint_of_another_language(tmp_path):
    Training(1).train_to(4, tmp_path)
    (path,) = tmp_path.iterdir()
    checkpoint = core().Checkpoint.read(bytes(path))
    checkpoint.texts = {"optimizer": checkpoint.texts["optimizer"]}
    checkpoint.tensors = {}
    checkpoint.write(bytes(tmp_path), 1)
    run = Training(2)
    assert abele.load_checkpoint(tmp_path, run.model) == {"step": 4, "path": str(path)}
    assert run.optimizer.param_groups[0]["lr"] == 0.025 and run.optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    run.model.compile(*next(iter(run.loader)))
    state = run.model._native.session().optimizerState()
    assert state["step/first.weight"] == 8
    run.model.copyWeightsToHost()
    assert run.optimizer.state[run.net.first.weight]["step"] == 8  # also before the first call
    assert {name: value.sum() for name, value in state.items()} == {
        name: value.sum() for name, value in checkpoint.optimizer_state.items()
    }


def test_between_two_passes(tmp_path):
    def passes(run, count):
        for _ in range(count):
            for x, target in run.loader:
                run.losses[run.step] = float(run.model(x, target))
                run.step += 1

    passes(whole := Training(1), 2)
    passes(before := Training(1), 1)
    before.save(tmp_path)
    passes(after := Training(2).load(tmp_path), 1)
    _same(whole, after, 6)


def test_notes_and_what_is_kept(tmp_path):
    run = Training(1).train_to(1)
    for step in (3, 10, 200):
        path = abele.save_checkpoint(
            tmp_path / "made", run.model, step=step, keep=2, notes={"epoch": step, "parts": (1, [2.5, None], {3: "x"})}
        )
    assert path == str(tmp_path / "made" / "step-0000000200.safetensors")
    assert sorted(file.name for file in (tmp_path / "made").iterdir()) == [
        "step-0000000010.safetensors",
        "step-0000000200.safetensors",
    ]
    found = abele.load_checkpoint(tmp_path / "made", run.model, step=10)
    assert found == {
        "epoch": 10,
        "parts": (1, [2.5, None], {3: "x"}),
        "step": 10,
        "path": str(tmp_path / "made" / "step-0000000010.safetensors"),
    }
    assert abele.load_checkpoint(tmp_path / "none", run.model) is None


def test_what_it_cannot_do(tmp_path):
    run = Training(1)
    with pytest.raises(abele.Error, match="E0705"):
        run.save(tmp_path)
    run.train_to(1)
    with pytest.raises(abele.Error, match="E0702.*notes.*Tensor"):
        abele.save_checkpoint(tmp_path, run.model, step=1, notes={"x": torch.ones(1)})
    with pytest.raises(abele.Error, match="E0702"):
        abele.save_checkpoint(tmp_path, run.model, step=-1)
    assert not list(tmp_path.iterdir())
    abele.save_checkpoint(tmp_path, run.model, step=1)
    with pytest.raises(abele.Error, match="E0712.*loader"):
        abele.load_checkpoint(tmp_path, run.model, run.loader)
    with pytest.raises(abele.Error, match="E0712"):
        abele.load_checkpoint(tmp_path, run.model, step=2)
    for wrong in ({"step": "1"}, {"step": 1.5}, {"step": 2**63}, {"step": 1, "keep": "all"}):
        with pytest.raises(abele.Error, match="E0702.*(step|keep) is"):
            abele.save_checkpoint(tmp_path, run.model, **wrong)
    with pytest.raises(abele.Error, match="E0702.*step is '1'"):
        abele.load_checkpoint(tmp_path, run.model, step="1")
    (tmp_path / "file").touch()
    with pytest.raises(abele.Error, match="E0712"):
        abele.load_checkpoint(tmp_path / "file", run.model)


def test_steps_of_other_integers_and_all_are_kept(tmp_path):
    run = Training(1).train_to(1)
    for step in (numpy.int64(1), torch.tensor(2), 3, 4, 5):
        abele.save_checkpoint(tmp_path, run.model, step=step, keep=None)
    assert len(list(tmp_path.iterdir())) == 5
    assert abele.load_checkpoint(tmp_path, run.model, step=numpy.int64(2))["step"] == 2


def test_files_of_tensors_take_tensors_by_name(tmp_path):
    for wrong in ({1: torch.ones(1)}, {"a": 1}):
        with pytest.raises(abele.Error, match="E0708"):
            abele.save_tensors(tmp_path / "a.safetensors", wrong)


def test_paths_where_the_process_is_in_a_folder_that_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(abele.Error, match="E0712"):
        abele.save_tensors("a.safetensors", {"a": torch.ones(1)})
    with pytest.raises(abele.Error, match="E0712"):
        poptorch.load("a.poptorch")


def test_another_model_keeps_what_it_has(tmp_path):
    Training(1).train_to(1, tmp_path)
    wide = abele.trainingModel(Net(5), optimizer=torch.optim.AdamW(Net(5).parameters()))
    with pytest.raises(abele.Error, match=r"E0708.*first\.weight"):
        abele.load_checkpoint(tmp_path, wide)
    for compiled in (False, True):
        other = Training(2, torch.optim.SGD)
        if compiled:
            other.train_to(1)
        before = {name: value.clone() for name, value in other.net.state_dict().items()}
        with pytest.raises(abele.Error, match="E0706"):
            other.load(tmp_path)
        after = other.net.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_damaged_checkpoint(tmp_path):
    run = Training(1).train_to(1, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(abele.Error, match="E0501"):
            run.load(tmp_path)
    path.write_bytes(whole)
    assert run.load(tmp_path).step == 1


@pytest.mark.parametrize(
    "texts",
    [
        {"optimizer": "{"},
        {"optimizer": "[" * 100_000},
        {"optimizer": "[]"},
        {"optimizer": None},
        {"python": "3"},
        {"python": "[]"},
        {"python": '{"optimizer": {"groups": 3}}'},
        {"python": '{"optimizer": {"groups": [3]}}'},
        {"python": '{"extra": {"tensor": "none"}}'},
        {"python": '{"extra": {"dict": [1]}}'},
        # These replace all of Python's values.
        {"python": {"random": {"random": 3}}},
        {"python": {"random": {"random": {"tuple": [3, {"tuple": [-1] * 625}, None]}}}},
        {"python": {"random": {"numpy": "MT19937"}}},
        {"python": {"random": 3}},
        {"python": {"loader": "many"}},
        {"python": {"loader": -1}},
        {"python": {"loader_random": None}},
        {"python": {"notes": 3}},
    ],
)
def test_a_checkpoint_whose_texts_somebody_changed(texts, tmp_path):
    run = Training(1).train_to(1, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    metadata = header["__metadata__"]
    del metadata["abele.checksums"], metadata["abele.metadata_checksum"]  # as other programs write such files
    for name, text in texts.items():
        if isinstance(text, dict):
            text = json.dumps(json.loads(metadata[f"text/{name}"]) | text)
        metadata[f"text/{name}"] = text
        if text is None:
            del metadata[f"text/{name}"]
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + whole[8 + length :])
    before = {name: value.clone() for name, value in run.net.state_dict().items()}
    host = torch.get_rng_state()
    with pytest.raises(abele.Error, match="E0501|E0706"):
        run.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), host)
    assert all(torch.equal(value, before[name]) for name, value in run.net.state_dict().items())


def test_files_of_tensors(tmp_path):
    path = tmp_path / "w.safetensors"
    tensors = {
        "a": torch.randn(3, 4).t(),
        "b": torch.arange(5, dtype=torch.int16),
        "c": torch.ones(2, dtype=torch.bfloat16),
        "d": torch.tensor(True),
        "e": torch.zeros(0, 3),
    }
    abele.save_tensors(path, tensors)
    found = abele.load_tensors(path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in tensors.items())
    length = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + length])
    assert header["a"]["dtype"] == "F32" and header["a"]["shape"] == [4, 3]
