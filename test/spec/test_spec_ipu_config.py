"""abele.ipu_config: settings, their files, the options that they stand for, and which layer is where."""

import copy
import json
import os
import sys
import types

import abele
import popart
import poptorch
import pytest
import torch
from abele.ipu_config import (
    IncompatibleIPUConfigError,
    IPUConfig,
    get_layer_ipu,
    split_encoder_decoder_ipu_config,
)

# What a published file holds, with the defaults.
DEFAULTS = {
    "auto_loss_scaling": False,
    "device_iterations": 1,
    "embedding_serialization_factor": 1,
    "enable_half_partials": True,
    "executable_cache_dir": "",
    "execute_encoder_on_cpu_for_generation": False,
    "explicit_ir_inference": False,
    "gradient_accumulation_steps": 1,
    "inference_device_iterations": 1,
    "inference_embedding_serialization_factor": 1,
    "inference_ipus_per_replica": 1,
    "inference_layers_per_ipu": [-1],
    "inference_matmul_proportion": 0.2,
    "inference_parallelize_kwargs": {},
    "inference_projection_serialization_factor": 1,
    "inference_replication_factor": 1,
    "inference_serialized_embedding_splits_per_ipu": None,
    "inference_serialized_projection_splits_per_ipu": None,
    "ipus_per_replica": 1,
    "layers_per_ipu": [-1],
    "matmul_proportion": 0.2,
    "optimizer_state_offchip": False,
    "output_mode": "final",
    "parallelize_kwargs": {},
    "projection_serialization_factor": 1,
    "recompute_checkpoint_every_layer": False,
    "replicated_tensor_sharding": False,
    "replication_factor": 1,
    "seed": None,
    "serialized_embedding_splits_per_ipu": None,
    "serialized_projection_splits_per_ipu": None,
}


# Settings -------------------------------------------------------------------------------------------------------------
def test_defaults():
    assert IPUConfig().to_dict() == DEFAULTS
    assert abele.ipu_config.IPUConfig is IPUConfig and IPUConfig().mode == "training"


@pytest.mark.parametrize(
    ("given", "derived"),
    [
        ({"layers_per_ipu": [2, 2]}, {"ipus_per_replica": 2, "inference_ipus_per_replica": 2}),
        ({"layers_per_ipu": [2, 2]}, {"inference_layers_per_ipu": [2, 2]}),
        ({"ipus_per_replica": 4}, {"inference_ipus_per_replica": 4, "layers_per_ipu": [-1]}),
        ({"ipus_per_replica": 4, "inference_layers_per_ipu": [3, 3]}, {"inference_ipus_per_replica": 2}),
        ({"layers_per_ipu": [1, 1], "matmul_proportion": [0.1, 0.3]}, {"inference_matmul_proportion": [0.1, 0.3]}),
        (
            {"layers_per_ipu": [1, 1], "inference_layers_per_ipu": [2], "matmul_proportion": [0.1, 0.3]},
            {"inference_matmul_proportion": 0.2},
        ),
        ({"matmul_proportion": 0.5}, {"inference_matmul_proportion": 0.5}),
        (
            {"layers_per_ipu": [1, 1], "serialized_embedding_splits_per_ipu": [2, 0]},
            {"embedding_serialization_factor": None, "inference_embedding_serialization_factor": 1},
        ),
    ],
)
def test_settings_that_others_decide(given, derived):
    config = IPUConfig(**given)
    assert {name: getattr(config, name) for name in derived} == derived


def test_derived_settings_are_copies():
    config = IPUConfig(layers_per_ipu=[1, 1])
    config.layers_per_ipu[0] = 5
    assert config.inference_layers_per_ipu == [1, 1] and IPUConfig().layers_per_ipu == [-1]


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("layers_per_ipu", [-2], ValueError),
        ("layers_per_ipu", None, TypeError),
        ("layers_per_ipu", (1, 2), TypeError),
        ("layers_per_ipu", [1.5], TypeError),
        ("matmul_proportion", -0.1, ValueError),
        ("matmul_proportion", "much", TypeError),
        ("replication_factor", 0, ValueError),
        ("replication_factor", {"default": 1}, ValueError),
        ("inference_replication_factor", None, ValueError),
        ("gradient_accumulation_steps", 0, ValueError),
        ("gradient_accumulation_steps", None, TypeError),
        ("ipus_per_replica", 0, ValueError),
        ("device_iterations", 0, ValueError),
        ("inference_device_iterations", 1.5, TypeError),
        ("embedding_serialization_factor", 0, ValueError),
        ("projection_serialization_factor", "2", TypeError),
        ("serialized_embedding_splits_per_ipu", [0, 0], ValueError),
        ("serialized_embedding_splits_per_ipu", [-1, 2], ValueError),
        ("serialized_projection_splits_per_ipu", [3, 0, 2, 0], ValueError),
        ("optimizer_state_offchip", 1, TypeError),
        ("output_mode", "some", ValueError),
        ("output_mode", None, TypeError),
        ("seed", "s", TypeError),
        ("parallelize_kwargs", {1: 2}, TypeError),
        ("executable_cache_dir", None, TypeError),
    ],
)
def test_values_are_checked_when_given(name, value, error):
    with pytest.raises(error, match=name):
        IPUConfig(**{name: value})


def test_values_are_checked_when_set():
    config = IPUConfig()
    with pytest.raises(ValueError, match="replication_factor takes values >= 1, got 0"):
        config.replication_factor = 0
    with pytest.raises(TypeError, match="layers_per_ipu takes list of int"):
        config.layers_per_ipu = 4
    with pytest.raises(AttributeError, match="layer_per_ipu"):
        config.layer_per_ipu = [1]
    config.seed = None
    config.seed = 2**64 - 1
    config.replication_factor = True  # an int of Python
    config.layers_per_ipu = [0, 4]
    assert (config.layers_per_ipu, config.seed, config.replication_factor) == ([0, 4], 2**64 - 1, 1)
    config.ipus_per_replica = 2
    assert config.to_options().toDict()["random_seed"] == 2**64 - 1
    config.layers_per_ipu.append("all")
    with pytest.raises(TypeError, match="layers_per_ipu takes list of int"):
        get_layer_ipu(config, 4)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"layers_per_ipu": [1, 2], "ipus_per_replica": 4}, IncompatibleIPUConfigError, "ipus_per_replica=4"),
        ({"matmul_proportion": [0.1, 0.2]}, IncompatibleIPUConfigError, "matmul_proportion"),
        ({"inference_layers_per_ipu": [2], "inference_ipus_per_replica": 2}, IncompatibleIPUConfigError, "inference_"),
        (
            {"embedding_serialization_factor": 2, "serialized_embedding_splits_per_ipu": [2]},
            ValueError,
            "not both",
        ),
        (
            {"projection_serialization_factor": 2, "serialized_projection_splits_per_ipu": [2]},
            ValueError,
            "not both",
        ),
        ({"serialized_embedding_splits_per_ipu": [1, 1]}, ValueError, "serialized_embedding_splits_per_ipu"),
        ({"layer_per_ipu": [1], "what": 2}, IncompatibleIPUConfigError, "layer_per_ipu, what"),
    ],
)
def test_settings_must_fit_together(given, error, words):
    assert issubclass(IncompatibleIPUConfigError, ValueError)
    with pytest.raises(error, match=words):
        IPUConfig(**given)


def test_deprecated_settings_warn():
    with pytest.warns(UserWarning, match="sharded_execution_for_inference"):
        IPUConfig(sharded_execution_for_inference=True)
    with pytest.warns(UserWarning, match="first_order_momentum_accum_type"):
        IPUConfig(enable_half_first_order_momentum=True)


def test_the_mode_chooses_between_twins():
    config = IPUConfig(layers_per_ipu=[1, 3], inference_layers_per_ipu=[4])
    assert config._layers_per_ipu == [1, 3] and config.eval() is config
    assert config.mode == "inference" and config._layers_per_ipu == [4] and config._ipus_per_replica == 1
    config._matmul_proportion = 0.7
    assert config.inference_matmul_proportion == 0.7 and config.train()._matmul_proportion == 0.2
    with pytest.raises(ValueError, match="training, inference"):
        config.mode = "both"


def test_batch_size_factor():
    config = IPUConfig(
        replication_factor=2, gradient_accumulation_steps=3, device_iterations=5, inference_device_iterations=7
    )
    assert config.batch_size_factor() == 30 and config.batch_size_factor(for_inference=True) == 7


def test_update_from_string():
    config = IPUConfig()
    config.update_from_string(
        "matmul_proportion=[0.08 0.2],output_mode=all,enable_half_partials=no,seed=7,gradient_accumulation_steps=4,"
        "layers_per_ipu=[1 -1]"
    )
    assert (config.matmul_proportion, config.output_mode, config.seed) == ([0.08, 0.2], "all", 7)
    assert config.layers_per_ipu == [1, -1] and config.enable_half_partials is False
    for text in ("unknown=1", "seed=x", "seed", "enable_half_partials=perhaps", "parallelize_kwargs={}"):
        with pytest.raises(ValueError, match=text.partition("=")[0]):
            config.update_from_string(text)


# Files ----------------------------------------------------------------------------------------------------------------
def test_files_are_those_of_the_published_form(tmp_path):
    config = IPUConfig(layers_per_ipu=[1, -1], gradient_accumulation_steps=8, seed=3, parallelize_kwargs={"a": 1})
    config.save_pretrained(tmp_path / "new" / "folder")
    text = (tmp_path / "new" / "folder" / "ipu_config.json").read_text()
    assert text == json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n" == config.to_json_string()
    assert IPUConfig.from_pretrained(tmp_path / "new" / "folder") == config
    assert IPUConfig.from_pretrained(str(tmp_path / "new"), subfolder="folder") == config
    assert IPUConfig.from_pretrained(tmp_path / "new" / "folder" / "ipu_config.json") == config
    assert IPUConfig.from_json_file(tmp_path / "new" / "folder" / "ipu_config.json") == config
    assert IPUConfig.from_dict(config.to_dict()) == config == copy.deepcopy(config) != IPUConfig()
    assert repr(config) == f"IPUConfig {text}"


def test_foreign_keys_of_published_files_are_no_error(tmp_path):
    versions = {"optimum_version": "1.6.1", "transformers_version": "4.29.2"}
    published = DEFAULTS | versions | {"profile_dir": "", "use_popdist": False}  # settings of earlier versions
    (tmp_path / "ipu_config.json").write_text(json.dumps(published))
    assert IPUConfig.from_pretrained(tmp_path) == IPUConfig()


def test_settings_in_place_of_the_files(tmp_path):
    IPUConfig(layers_per_ipu=[2, 2]).save_pretrained(tmp_path)
    config, unused = IPUConfig.from_pretrained(
        tmp_path, gradient_accumulation_steps=6, return_unused_kwargs=True, color="red"
    )
    assert config.gradient_accumulation_steps == 6 and unused == {"color": "red"}
    with pytest.raises(ValueError, match="replication_factor"):
        IPUConfig.from_pretrained(tmp_path, replication_factor=0)


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError):
        IPUConfig.from_pretrained(tmp_path)
    for text in ("{not json", '{"layers_per_ipu": ' + "[" * 200_000):
        (tmp_path / "ipu_config.json").write_text(text)
        with pytest.raises(OSError, match="is not a JSON file"):
            IPUConfig.from_pretrained(tmp_path)
    # A file of which a read would never end.
    (tmp_path / "ipu_config.json").unlink()
    os.mkfifo(tmp_path / "ipu_config.json")
    for path in (tmp_path, tmp_path / "ipu_config.json"):
        with pytest.raises(OSError, match="is not a JSON file: E0712"):
            IPUConfig.from_pretrained(path)
    (tmp_path / "ipu_config.json").unlink()
    (tmp_path / "ipu_config.json").write_bytes(b'{"seed": "\xff"}')
    with pytest.raises(OSError, match="is not a JSON file: E0712"):
        IPUConfig.from_pretrained(tmp_path)
    (tmp_path / "ipu_config.json").write_text("[1]")
    with pytest.raises(OSError, match="JSON object"):
        IPUConfig.from_pretrained(tmp_path)
    with pytest.raises(AssertionError, match="is a file"):
        IPUConfig().save_pretrained(tmp_path / "ipu_config.json")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(OSError, match="huggingface_hub"):
        IPUConfig.from_pretrained("Graphcore/bert-base-ipu")


def test_names_on_the_hub(tmp_path, monkeypatch):
    IPUConfig(seed=9).save_pretrained(tmp_path)
    asked = []

    def download(model, file, **kwargs):
        asked.append((model, file, kwargs))
        return str(tmp_path / "ipu_config.json")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(hf_hub_download=download))
    assert IPUConfig.from_pretrained("Graphcore/bert-base-ipu", revision="v1").seed == 9
    assert asked == [("Graphcore/bert-base-ipu", "ipu_config.json", {"subfolder": None, "revision": "v1"})]


# Options --------------------------------------------------------------------------------------------------------------
def test_options_for_training():
    config = IPUConfig(
        layers_per_ipu=[1, 1],
        replication_factor=2,
        gradient_accumulation_steps=3,
        device_iterations=5,
        output_mode="sum",
        seed=11,
        matmul_proportion=[0.1, 0.4],
        replicated_tensor_sharding=True,
        optimizer_state_offchip=True,
        auto_loss_scaling=True,
        executable_cache_dir="cache",
    )
    options = config.to_options()
    values = options.toDict()
    assert isinstance(options, poptorch.Options)
    assert (options.replication_factor, options.device_iterations, options.Training.gradient_accumulation) == (2, 5, 3)
    assert values["output_mode"] == int(poptorch.OutputMode.Sum) and values["random_seed"] == 11
    assert values["available_memory_proportion"] == {0: 0.1, 1: 0.4} or values["available_memory_proportion"] == {
        "IPU0": 0.1,
        "IPU1": 0.4,
    }
    assert values["location_optimizer"] == {"onChip": 0, "useReplicatedTensorSharding": 1}
    assert values["auto_round_num_ipus"] is True and values["cachePath"] == "cache"
    assert values["automaticLossScalingSettings.enabled"] is True and values["enableStochasticRounding"] is True
    assert values["partialsTypeMatMuls"] == "half"
    reduction = options.Training.accumulation_and_replication_reduction_type
    assert reduction == poptorch.ReductionType.Mean
    assert repr(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)) in repr(options)
    assert config.mode == "training"


def test_options_of_the_backend():
    values = IPUConfig().to_options().toDict()
    assert {
        "disableGradAccumulationTensorStreams": True,
        "accumulateOuterFragmentSettings.schedule": int(popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized),
        "accumulateOuterFragmentSettings.excludedVirtualGraphs": ["0"],
        "outlineThreshold": 10.0,
        "subgraphCopyingStrategy": int(popart.SubgraphCopyingStrategy.JustInTime),
        "scheduleNonWeightUpdateGradientConsumersEarly": True,
        "patterns": {"TiedGather": True, "TiedGatherAccumulate": True, "UpdateInplacePrioritiesForIpu": True},
        "engineOptions": {"opt.useAutoloader": "true", "target.syncReplicasIndependently": "true"},
    }.items() <= values.items()
    other = IPUConfig().to_options().toDict()
    assert values["saveInitializersToFile"] != other["saveInitializersToFile"]
    assert "enableExplicitIR" not in IPUConfig(explicit_ir_inference=True).to_options().toDict()
    assert IPUConfig(explicit_ir_inference=True).to_options(for_inference=True).toDict()["enableExplicitIR"] is True


def test_options_for_inference():
    config = IPUConfig(
        inference_layers_per_ipu=[1, 1],
        inference_replication_factor=2,
        inference_device_iterations=4,
        gradient_accumulation_steps=8,
        auto_loss_scaling=True,
        inference_matmul_proportion=0.6,
        enable_half_partials=False,
        executable_cache_dir="disabled",
        seed=0,
    )
    options = config.to_options(for_inference=True)
    values = options.toDict()
    assert (options.replication_factor, options.device_iterations, options.Training.gradient_accumulation) == (2, 4, 1)
    assert values["output_mode"] == int(poptorch.OutputMode.All) and values["enableStochasticRounding"] is False
    assert list(values["available_memory_proportion"].values()) == [0.6, 0.6]
    absent = {"cachePath", "partialsTypeMatMuls", "automaticLossScalingSettings.enabled", "random_seed"}
    assert not absent & values.keys()
    assert repr(poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement)) in repr(options)


@pytest.mark.parametrize("mode", ["all", "sum", "final", "default"])
def test_output_modes(mode):
    options = IPUConfig(output_mode=mode).to_options()
    assert options.output_mode == poptorch.OutputMode[mode.capitalize()]


def test_optimizer_state_is_shared_among_replicas_only():
    config = IPUConfig(replicated_tensor_sharding=True)
    assert config.to_options().toDict()["location_optimizer"] == {"onChip": 1, "useReplicatedTensorSharding": 0}


def test_machines_without_devices(monkeypatch):
    monkeypatch.setenv("ABELE_EMULATED_DEVICES", "0")
    with pytest.raises(RuntimeError, match="This requires an IPU Mk2 system to run."):
        IPUConfig().to_options()
    monkeypatch.delenv("ABELE_EMULATED_DEVICES")
    monkeypatch.setattr("abele.ipu_config.config.ipuHardwareVersion", lambda: 1)
    with pytest.raises(RuntimeError, match="This requires an IPU Mk2 system to run."):
        IPUConfig().to_options()
    options = IPUConfig().to_options(compile_only=True)
    assert options.connection_type == poptorch.ConnectionType.Never and options.ipu_version == 2
    model = poptorch.inferenceModel(torch.nn.Linear(2, 2), options)
    with pytest.raises(AssertionError, match="offline"):
        model(torch.ones(1, 2))


def test_options_that_cannot_be():
    with pytest.raises(NotImplementedError, match="execute_encoder_on_cpu_for_generation"):
        IPUConfig(execute_encoder_on_cpu_for_generation=True).to_options()
    config = IPUConfig()
    config.__dict__["output_mode"] = "some"
    with pytest.raises(KeyError, match="some is not a valid poptorch.OutputMode, .* modes: all, sum, final, default"):
        config.to_options()
    config = IPUConfig(layers_per_ipu=[1, 1])
    config.matmul_proportion = [0.1]
    with pytest.raises(IncompatibleIPUConfigError, match="matmul_proportion"):
        config.to_options()
    assert config.mode == "training"


# Layers ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "layers", "shares"),
    [
        ({}, 3, [3]),
        ({"layers_per_ipu": [2, 3]}, 5, [2, 3]),
        ({"layers_per_ipu": [2, 3]}, None, [2, 3]),
        ({"layers_per_ipu": [-1, -1]}, 9, [4, 5]),
        ({"ipus_per_replica": 4}, 6, [1, 1, 1, 3]),
        ({"layers_per_ipu": [1, 2, -1, -1]}, 12, [1, 2, 4, 5]),
        ({"layers_per_ipu": [-1, 2, -1, 1]}, 8, [2, 2, 3, 1]),
        ({"layers_per_ipu": [0, 4, -1]}, 4, [0, 4, 0]),
        ({"layers_per_ipu": [7], "ipus_per_replica": 1}, 3, [3]),
    ],
)
def test_layers_are_shared(settings, layers, shares):
    expected = [ipu for ipu, number in enumerate(shares) for _ in range(number)]
    config = IPUConfig(**settings)
    assert get_layer_ipu(config, layers) == expected
    if layers is not None:
        assert get_layer_ipu(config, ["layer"] * layers) == expected


@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        ({"layers_per_ipu": [2, 3]}, 6),
        ({"layers_per_ipu": [2, 3]}, 4),
        ({"layers_per_ipu": [3, 3, -1]}, 5),
        ({"layers_per_ipu": [1, -1], "ipus_per_replica": 4}, 8),
        ({"layers_per_ipu": [-1, -1]}, None),
    ],
)
def test_layers_that_do_not_fit(settings, layers):
    with pytest.raises(IncompatibleIPUConfigError, match="layers_per_ipu"):
        get_layer_ipu(IPUConfig(**settings), layers)


def test_layers_of_inference():
    config = IPUConfig(layers_per_ipu=[1, 3], inference_layers_per_ipu=[4])
    assert get_layer_ipu(config, 4) == [0, 1, 1, 1] and get_layer_ipu(config.eval(), 4) == [0, 0, 0, 0]


def test_encoder_and_decoder():
    config = IPUConfig(
        layers_per_ipu=[2, 2, 3, 1],
        matmul_proportion=[0.1, 0.2, 0.3, 0.4],
        serialized_embedding_splits_per_ipu=[1, 1, 0, 0],
        serialized_projection_splits_per_ipu=[0, 0, 0, 2],
    )
    encoder, decoder = split_encoder_decoder_ipu_config(config, 4, 4)
    assert (encoder.layers_per_ipu, decoder.layers_per_ipu) == ([2, 2], [3, 1])
    assert (encoder.ipus_per_replica, decoder.ipus_per_replica) == (2, 2)
    assert (encoder.matmul_proportion, decoder.matmul_proportion) == ([0.1, 0.2], [0.3, 0.4])
    assert (
        encoder.serialized_embedding_splits_per_ipu == [1, 1] and encoder.serialized_projection_splits_per_ipu is None
    )
    assert (
        decoder.serialized_projection_splits_per_ipu == [0, 2] and decoder.serialized_embedding_splits_per_ipu is None
    )
    assert config.layers_per_ipu == [2, 2, 3, 1]


def test_the_encoder_takes_the_greatest_power_of_two():
    encoder, decoder = split_encoder_decoder_ipu_config(IPUConfig(layers_per_ipu=[4, 0, 4]), 4, 4)
    assert (encoder.layers_per_ipu, decoder.layers_per_ipu) == ([4, 0], [4])
    encoder, decoder = split_encoder_decoder_ipu_config(IPUConfig(ipus_per_replica=2), 6, 6)
    assert (encoder.layers_per_ipu, decoder.layers_per_ipu) == ([6], [6])


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"layers_per_ipu": [8]}, IncompatibleIPUConfigError),
        ({"layers_per_ipu": [3, 5]}, IncompatibleIPUConfigError),
        ({"layers_per_ipu": [1, 2, 1, 4]}, IncompatibleIPUConfigError),
        ({"layers_per_ipu": [4, 4], "serialized_embedding_splits_per_ipu": [1, 1]}, ValueError),
        ({"layers_per_ipu": [4, 4], "serialized_projection_splits_per_ipu": [1, 1]}, ValueError),
    ],
)
def test_encoders_that_cannot_be_cut_off(settings, error):
    with pytest.raises(error):
        split_encoder_decoder_ipu_config(IPUConfig(**settings), 4, 4)
