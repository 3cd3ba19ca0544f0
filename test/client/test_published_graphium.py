"""graphium's training of graph networks, unmodified: losses and predictions of each step are those of eager PyTorch.

Skipped where it is not installed. It pins old versions of much else, and two of its packages are built for this torch:
  pip install --no-deps --target FOLDER -r requirements-graphium.txt
  PYTHONPATH=FOLDER pip install --no-deps --no-build-isolation --target FOLDER torch_scatter==2.1.2 torch_sparse==0.6.18
  PYTHONPATH=FOLDER python -m pytest test/client/test_published_graphium.py
"""

import collections
import collections.abc
import copy
import pathlib

import numpy
import poptorch
import pytest
import torch

# Its release is older than Python 3.10 and scipy 1.9.
collections.Sequence, collections.Mapping = collections.abc.Sequence, collections.abc.Mapping
graphium = pytest.importorskip("graphium")
pandas = pytest.importorskip("pandas")
yaml = pytest.importorskip("yaml")

MOLECULES = ["CCO", "CCN", "CCC", "c1ccccc1", "CC(=O)O", "CCOC", "CCCl", "C1CCCCC1"]
MOLECULES += ["CC(C)O", "OCCO", "CNC", "CC#N", "C=CC", "c1ccncc1", "CCCC", "CC(N)C"]
IPU = {"type": "ipu", "ipu_config": ["deviceIterations(1)"], "ipu_inference_config": ["deviceIterations(1)"]}


@pytest.fixture
def half_features(monkeypatch):
    """Lets sparse matrices be of float16, which scipy no longer takes."""
    coo = pytest.importorskip("scipy.sparse._coo")
    getdata = coo.getdata

    def single(data, *args, dtype=None, **kwargs):
        if getattr(data, "dtype", None) == numpy.float16:
            data = data.astype(numpy.float32)
        dtype = numpy.float32 if dtype == numpy.float16 else dtype
        return getdata(data, *args, dtype=dtype, **kwargs)

    monkeypatch.setattr(coo, "getdata", single)


def settings(table):
    """Its published settings for a message passing network, on few small molecules."""
    root = pathlib.Path(graphium.__file__).parents[1]
    file = root / "expts/configs/config_mpnn_pcqm4m.yaml"
    if not file.exists():
        pytest.skip("this graphium comes without its experiments")
    config = yaml.safe_load(file.read_text())
    config["accelerator"] = config["constants"]["accelerator"] = copy.deepcopy(IPU)
    data = config["datamodule"]["args"]
    task = data["task_specific_args"]["homolumo"]
    task.update(df_path=str(table), splits_path=None, split_val=0.25, split_test=0.25)
    task.pop("split_names")
    data.update(featurization_n_jobs=0, featurization_progress=False, num_workers=0, processed_graph_data_path=None)
    data.update(batch_size_training=4, batch_size_inference=4)
    limits = {"mode": "sync", "max_num_nodes_per_graph": 20, "max_num_edges_per_graph": 60}
    data.update(ipu_dataloader_training_opts=dict(limits), ipu_dataloader_inference_opts=dict(limits))
    positions = data["featurization"]["pos_encoding_as_features"]["pos_types"]
    positions.pop("la_pos")
    positions["rw_pos"].update(pos_type="rw_return_probs", pos_level="node")
    architecture = config["architecture"]
    architecture["pe_encoders"]["encoders"].pop("la_pos")
    architecture["gnn"].pop("pooling", None)
    none = dict.fromkeys(("last_activation", "last_normalization", "residual_type"), "none")
    head = {"pooling": ["sum"], "out_dim": 32, "hidden_dims": 32, "depth": 1, "activation": "relu", "dropout": 0.0}
    architecture["graph_output_nn"] = {"graph": {**head, "normalization": "layer_norm", **none}}
    architecture["task_heads"]["homolumo"]["task_level"] = "graph"
    trainer = config["trainer"]
    trainer.pop("logger")
    trainer.pop("model_checkpoint")
    trainer["trainer"].update(max_epochs=2, check_val_every_n_epoch=2, precision="32", accumulate_grad_batches=1)
    trainer["trainer"].update(default_root_dir=str(table.parent), enable_progress_bar=False)
    config["predictor"]["optim_kwargs"]["lr"] = 5e-3
    config["predictor"]["torch_scheduler_kwargs"] = {"module_type": "StepLR", "step_size": 6}
    return config


def experiment(table):
    from graphium.config import _loader as load

    config, kind = load.load_accelerator(settings(table))
    data = load.load_datamodule(config, kind)
    model_class, model_kwargs = load.load_architecture(config, in_dims=data.in_dims)
    data.prepare_data()
    predictor = load.load_predictor(
        config=config,
        model_class=model_class,
        model_kwargs=model_kwargs,
        metrics=load.load_metrics(config),
        task_levels=data.get_task_levels(),
        accelerator_type=kind,
        featurization=data.featurization,
        task_norms=data.task_norms,
    )
    for module in predictor.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return data, predictor, load.load_trainer(config, kind)


def widened(value):
    """What the device takes as 32 bits, for eager: its scatter_add wants int64."""
    if isinstance(value, torch.Tensor):
        narrow = {torch.int32: torch.int64, torch.float64: torch.float32}
        return value.to(narrow.get(value.dtype, value.dtype))
    if isinstance(value, dict):
        return {key: widened(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(widened, value))
    return copy.copy(value).apply(widened) if hasattr(value, "apply") else value


@pytest.fixture
def steps(monkeypatch):
    """Runs each step of an executor eagerly as well; a list of (ours, eager)."""
    results = []
    run = poptorch.PoplarExecutor.__call__

    def both(executor, *batch):
        buffers = [(buffer, buffer.clone()) for buffer in executor.model.buffers()]
        with torch.no_grad():
            eager = executor.model(*widened(batch))
            for buffer, before in buffers:
                buffer.copy_(before)
        results.append((run(executor, *batch), eager))
        return results[-1][0]

    monkeypatch.setattr(poptorch.PoplarExecutor, "__call__", both)
    return results


@pytest.mark.filterwarnings("ignore")
def test_steps_of_training_and_inference(half_features, steps, tmp_path):
    numbers = numpy.random.default_rng(0)
    rows = MOLECULES * 8
    gaps = [len(name) + 0.1 * numbers.normal() for name in rows]
    table = tmp_path / "molecules.csv"
    pandas.DataFrame({"cxsmiles": rows, "homo_lumo_gap": gaps}).to_csv(table, index=False)

    data, predictor, trainer = experiment(table)
    data.setup("fit")
    predictor.set_max_nodes_edges_per_graph(data, stages=["train", "val"])
    trainer.fit(model=predictor, datamodule=data)
    data.setup("test")
    predictor.set_max_nodes_edges_per_graph(data, stages=["test"])
    trainer.test(model=predictor, datamodule=data, verbose=False)

    losses = [(ours["loss"], eager["loss"]) for ours, eager in steps if "loss" in ours]
    predictions = [(ours["preds"], eager["preds"]) for ours, eager in steps if "preds" in ours]
    assert len(losses) >= 4 and len(predictions) >= 4
    for ours, eager in losses:
        assert torch.equal(ours, eager)
    for ours, eager in predictions:
        assert torch.equal(ours["graph_homolumo"], eager["graph_homolumo"])
