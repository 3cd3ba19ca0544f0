"""A model placed by an IPUConfig, a model placed by its modules' names, and large layers in pieces."""

import abele
import torch
from abele import pipeline
from abele.ipu_config import IPUConfig, SerializedEmbedding, SplitProjection, get_layer_ipu


class Layers(torch.nn.Module):
    def __init__(self, config: IPUConfig, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(layers))
        places: list[int] = get_layer_ipu(config, self.layers)
        for index, ipu in enumerate(places):
            abele.BeginBlock(self.layers[index], str(index), ipu_id=ipu)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def placed_by_config(x: torch.Tensor) -> torch.Tensor:
    config = IPUConfig(layers_per_ipu=[1, 2], inference_device_iterations=2, seed=3)
    config.matmul_proportion = [0.3, 0.4]
    shares: list[int] = config.layers_per_ipu
    assert sum(shares) == 3 and config.eval().mode == "inference"
    text: str = config.to_json_string()
    assert '"seed": 3' in text and IPUConfig(**config.to_dict()) == config
    options: abele.Options = config.to_options(for_inference=True, compile_only=False)
    model = abele.inferenceModel(Layers(config, 3), options)
    out: torch.Tensor = model(x)
    return out


def placed_by_name(x: torch.Tensor) -> torch.Tensor:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    placed: torch.nn.Sequential = pipeline.parallelize_pipeline(net, {"": "ipu:0", "1": ["ipu:1", None]})
    out: torch.Tensor = abele.inferenceModel(placed)(x)
    plain: torch.nn.Sequential = pipeline.unparallelize_pipeline(placed, "cpu")
    assert torch.equal(pipeline.move_to_device(plain(x), pipeline.get_device("cpu")), out)
    return out


def pieces(ids: torch.Tensor) -> torch.nn.Linear:
    words = SerializedEmbedding(torch.nn.Embedding(8, 4), 2).parallelize([1, 1])
    rows: torch.nn.Embedding = words.to_model()
    assert rows(ids).shape == (2, 4)
    return SplitProjection(torch.nn.Linear(4, 8), 2).to_model()


if __name__ == "__main__":
    print(placed_by_config(torch.randn(4, 4)).shape, placed_by_name(torch.randn(2, 4)).shape)
    print(pieces(torch.tensor([1, 2])))
