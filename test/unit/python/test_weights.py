"""Weights in safetensors files, one or several beside an index, and models that are made on the meta device."""

import json
import re
import struct

import abele
import poptorch
import pytest
import torch
import torch.nn.functional as F


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.attention = torch.nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens, target=None):
        poptorch.Block.start("0", ipu_id=0)
        x = self.norm(self.embed(tokens).transpose(1, 2)).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        poptorch.Block.start("1", ipu_id=1)
        out = self.head(x)
        if target is None:
            return out
        return out, poptorch.identity_loss(F.cross_entropy(out.flatten(0, 1), target.flatten()), reduction="mean")


def _batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(11, (4, 5), generator=generator), torch.randint(11, (4, 5), generator=generator)


def _made(seed):
    torch.manual_seed(seed)
    return Net()


def _on_meta():
    with torch.device("meta"):
        return Net()


def _equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _write_set(folder, tensors, shards=2, **metadata):
    """Writes an index and its files as other programs do."""
    names, weight_map = list(tensors), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        own = names[shard::shards]
        weight_map |= dict.fromkeys(own, file)
        abele.save_tensors(folder / file, {name: tensors[name] for name in own})
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return path


@pytest.fixture
def saved(tmp_path):
    """A model, and a folder with its weights in two files."""
    model = _made(1)
    model.norm.running_mean.add_(1)
    state = {name: value for name, value in model.state_dict().items() if name != "head.weight"}
    _write_set(tmp_path, state)
    return model, tmp_path


def _trained(model, steps=3, load=None):
    """Losses, and the executor."""
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.05)
    executor = abele.trainingModel(model, options, optimizer)
    if load is not None:
        load(executor)
    losses = [executor(*_batch(step))[1] for step in range(steps)]
    return losses, executor


# Ordinary models ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["", "model.safetensors.index.json"])
def test_a_set_of_files_fills_a_module(saved, name):
    model, folder = saved
    other = _made(2)
    abele.load_weights(folder / name, other)
    assert _equal(model.state_dict(), other.state_dict())
    assert other.head.weight is other.embed.weight


def test_one_file_with_all_names_of_tied_tensors(saved, tmp_path):
    model, _ = saved
    abele.save_tensors(tmp_path / "all.safetensors", model.state_dict())
    other = _made(2)
    abele.load_weights(tmp_path / "all.safetensors", other)
    assert _equal(model.state_dict(), other.state_dict())


def test_loaded_weights_go_to_the_devices_and_saved_ones_come_from_there(saved, tmp_path):
    _, folder = saved
    expected, first = _trained(_made(3), load=lambda executor: abele.load_weights(folder, executor))
    model = _made(4)
    _, executor = _trained(model, steps=1)
    abele.load_weights(folder, executor)
    executor.destroy()  # its optimizer has taken a step
    losses, executor = _trained(model, load=None)
    assert all(map(torch.equal, losses, expected))
    abele.save_weights(tmp_path / "out", executor)
    again = _made(5)
    abele.load_weights(tmp_path / "out", again)
    assert _equal(again.state_dict(), first.model.state_dict())


def test_a_running_model_takes_loaded_weights(saved):
    model, folder = saved
    executor = abele.inferenceModel(_made(2).eval())
    executor(_batch(0)[0])
    abele.load_weights(folder, executor)
    assert torch.equal(executor(_batch(0)[0]), abele.inferenceModel(model.eval())(_batch(0)[0]))


def test_a_folder_holds_the_set_that_was_saved_last(saved):
    model, folder = saved
    abele.save_weights(folder, model)
    assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
    abele.save_tensors(folder / "model.safetensors", {})
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(abele.Error, match="E0712 file: a folder with two sets of tensors"):
        abele.load_weights(folder, model)


def test_types_are_converted_where_it_is_asked_for(saved, tmp_path):
    model, folder = saved
    half = _made(2).half()
    with pytest.raises(abele.Error, match=r"E0708 .*: the tensor embed.weight of the files has another type") as error:
        abele.load_weights(folder, half)
    assert "f32[11, 6]" in str(error.value) or "f32[11,6]" in str(error.value)
    abele.load_weights(folder, half, convert=True)
    assert torch.equal(half.embed.weight, model.embed.weight.half())


def _without(state, name):
    return {key: value for key, value in state.items() if key != name}


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda s: _without(s, "norm.bias"), "the files have no tensor norm.bias"),
        (lambda s: {**s, "more": torch.zeros(2)}, "the files have a tensor more that the model does not have"),
        (lambda s: {**s, "norm.bias": torch.zeros(7)}, "the tensor norm.bias of the files has another shape"),
        (lambda s: {**s, "norm.bias": torch.zeros(6).double()}, "the tensor norm.bias of the files has another type"),
    ],
)
def test_files_of_another_model_change_nothing(saved, tmp_path, change, text):
    model, _ = saved
    (tmp_path / "other").mkdir()
    _write_set(tmp_path / "other", change(_without(model.state_dict(), "head.weight")))
    other = _made(2)
    with pytest.raises(abele.Error, match=f"E0708 arguments: {text}"):
        abele.load_weights(tmp_path / "other", other)
    assert _equal(other.state_dict(), _made(2).state_dict())


# Damage ---------------------------------------------------------------------------------------------------------------
def _header(text, data=b""):
    return struct.pack("<Q", len(text)) + text.encode() + data


def _entry(begin, end):
    return f'{{"dtype":"U8","shape":[{end - begin}],"data_offsets":[{begin},{end}]}}'


@pytest.mark.parametrize(
    "content, text",
    [
        (b"", "0 bytes"),
        (struct.pack("<Q", 2**62) + b"{}", "a header of 4611686018427387904 bytes"),
        (struct.pack("<Q", 99_000_000) + b"{}", "a header of 99000000 bytes"),
        (_header("{", b"0"), "no JSON object"),
        (_header(f'{{"a":{_entry(0, 2)},"b":{_entry(1, 3)}}}', b"012"), "overlap or leave holes"),
        (_header(f'{{"a":{_entry(0, 4)}}}', b"012"), "a at the bytes 0 to 4 of 3"),
        (_header(f'{{"a":{_entry(0, 2)}}}', b"012"), "1 bytes behind"),
        (_header(f'{{"a":{_entry(0, 2)},"a":{_entry(0, 2)}}}', b"01"), "a name twice"),
    ],
)
def test_damaged_files(tmp_path, content, text):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(abele.Error, match=f"E0501 .*(\n.*)*{re.escape(text)}"):
        abele.load_weights(path, _made(1))


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda index: "[]", "no JSON object"),
        (lambda index: "{", "no JSON object"),
        (lambda index: "{}", "no weight_map"),
        (lambda index: '{"weight_map": {"a": "b"}, "weight_map": {}}', "a name twice"),
        (lambda index: json.dumps({**index, "weight_map": {"a": 1}}), "a in 1"),
        (lambda index: json.dumps({**index, "weight_map": {"a": "../a.safetensors"}}), "for a file of the same folder"),
        (lambda index: json.dumps({**index, "metadata": {"abele.set": "7"}}), "written at another time"),
    ],
)
def test_damaged_indices(saved, change, text):
    model, folder = saved
    path = folder / "model.safetensors.index.json"
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(abele.Error, match=f"E0501 .*(\n.*)*{re.escape(text)}"):
        abele.load_weights(folder, model)


def test_an_index_and_files_that_do_not_fit(saved):
    model, folder = saved
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    moved = next(iter(index["weight_map"]))
    path.write_text(json.dumps({**index, "weight_map": _without(index["weight_map"], moved)}))
    with pytest.raises(abele.Error, match=f"E0501 .*(\n.*)*no word of {moved}, which is in model-00001"):
        abele.load_weights(path, model)
    index["weight_map"][moved] = "model-00002-of-00002.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(abele.Error, match=f"E0501 .*(\n.*)*{moved} in .*, which has no such tensor"):
        abele.load_weights(path, model)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(abele.Error, match="E0712 file: a file cannot be read"):
        abele.load_weights(path, model)


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_changed_bit_of_a_tensor_changes_nothing(saved, is_wrapped):
    _, folder = saved
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    model = _made(5).eval()
    target = abele.inferenceModel(model) if is_wrapped else model
    with pytest.raises(abele.Error, match="E0501 .*(\n.*)*with another checksum"):
        abele.load_weights(folder, target)
    assert _equal(model.state_dict(), _made(5).state_dict())


# On the meta device ---------------------------------------------------------------------------------------------------
def test_a_module_of_its_own_on_the_meta_device(saved):
    model, folder = saved
    other = _on_meta()
    abele.load_weights(folder, other)
    assert _equal(model.state_dict(), other.state_dict())
    assert torch.equal(other.eval()(_batch(0)[0]), model.eval()(_batch(0)[0]))


def test_training_from_files(saved, tmp_path):
    model, folder = saved
    expected, eager = _trained(model)
    other = _on_meta()
    losses, executor = _trained(other, load=lambda executor: abele.load_weights(folder, executor))
    assert all(map(torch.equal, losses, expected))
    assert not any(value.is_meta for value in other.state_dict().values())
    assert _equal(other.state_dict(), eager.model.state_dict())
    abele.save_weights(tmp_path / "out", executor)
    again = _made(7)
    abele.load_weights(tmp_path / "out", again)
    assert _equal(again.state_dict(), eager.model.state_dict())


def test_inference_from_files(saved):
    model, folder = saved
    executor = abele.inferenceModel(_on_meta().eval())
    abele.load_weights(folder, executor)
    assert torch.equal(executor(_batch(0)[0]), abele.inferenceModel(model.eval())(_batch(0)[0]))
    assert executor(_batch(0)[0][:2]).shape == (2, 5, 11)  # another program of the same weights


def test_nothing_says_what_a_tensor_holds():
    model = _on_meta()
    with pytest.raises(abele.Error, match="E0708 arguments: embed.weight is on the meta device, and has no") as e:
        _trained(model, 1)
    assert "abele.load_weights(path, model)" in str(e.value)
    assert all(value.is_meta for value in model.state_dict().values())


def test_files_are_looked_at_before_anything_is_compiled(saved):
    model, folder = saved
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    name = next(iter(index["weight_map"]))
    abele.save_tensors(folder / index["weight_map"][name], {name: torch.zeros(1)})
    executor = abele.inferenceModel(_on_meta())
    with pytest.raises(abele.Error, match="E0501|E0708"):
        abele.load_weights(folder, executor)


def test_damage_that_is_met_late_leaves_a_model_that_can_be_loaded_again(saved):
    model, folder = saved
    path = folder / "model-00001-of-00002.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"x")
    other = _on_meta().eval()
    executor = abele.inferenceModel(other)
    abele.load_weights(folder, executor)
    with pytest.raises(abele.Error, match="E0501 .*(\n.*)*with another checksum"):
        executor(_batch(0)[0])
    assert all(value.is_meta for value in [*other.parameters(), *other.buffers()])
    path.unlink()
    path.write_bytes(whole)
    abele.load_weights(folder, executor)
    assert torch.equal(executor(_batch(0)[0]), abele.inferenceModel(model.eval())(_batch(0)[0]))


class Positions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(4, 3)
        self.register_buffer("positions", torch.arange(4), persistent=False)

    def forward(self, x):
        return x + self.table(self.positions)


def test_buffers_that_are_no_part_of_the_state(tmp_path):
    model = Positions()
    abele.save_weights(tmp_path, model)
    with torch.device("meta"):
        other = Positions()
    executor = abele.inferenceModel(other)
    abele.load_weights(tmp_path, executor)
    with pytest.raises(abele.Error, match="E0708 arguments: positions is on the meta device, and the loaded files"):
        executor(torch.zeros(2, 4, 3))
    other.positions = torch.arange(4)
    executor = abele.inferenceModel(other)
    abele.load_weights(tmp_path, executor)
    assert torch.equal(executor(torch.zeros(2, 4, 3)), model(torch.zeros(2, 4, 3)))


# Initialisers ---------------------------------------------------------------------------------------------------------
def test_a_seed_draws_what_constructors_draw():
    model = Net()
    before = torch.get_rng_state()
    abele.init_weights(model, 5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.MultiheadAttention(4, 2), torch.nn.Conv1d(4, 2, 3))
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.MultiheadAttention(4, 2), torch.nn.Conv1d(4, 2, 3))
    abele.init_weights(other, 5)
    assert _equal(layers.state_dict(), other.state_dict())


def test_training_from_a_seed():
    model = Net()
    abele.init_weights(model, 5)
    expected, eager = _trained(model)
    other = _on_meta()
    losses, _ = _trained(other, load=lambda executor: abele.init_weights(executor, 5))
    assert all(map(torch.equal, losses, expected))
    assert _equal(other.state_dict(), eager.model.state_dict())


def test_a_module_that_cannot_be_initialised():
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(3))

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sequential(Scale()))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(abele.Error, match="E0708 arguments: the module 1.0 cannot be initialised"):
        abele.init_weights(model, 1)
    assert _equal(model.state_dict(), before)


def test_hooks_of_parameters_see_and_change_gradients(saved):
    """A hook that negates a gradient, beside parameters without hooks whose gradients a capture frees."""
    _, folder = saved

    def load(executor):
        abele.load_weights(folder, executor)
        executor.model.norm.weight.register_hook(lambda gradient: -gradient)

    expected, _ = _trained(_made(1), load=load)
    losses, _ = _trained(_on_meta(), load=load)
    assert all(map(torch.equal, losses, expected))
    assert not torch.equal(losses[-1], _trained(_made(1), load=lambda e: abele.load_weights(folder, e))[0][-1])
