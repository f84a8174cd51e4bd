"""ONNX models, which are converted to torch if the logits stay the same, and otherwise run by onnxruntime."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.errors import Misfit, RbError, shown
from rbtools.models import Shape
from rbtools.models.answering import AnsweringModel
from rbtools.models.normalising import RAW, Choices, NormalizationHints
from rbtools.models.onnx_to_torch import NotConverted, check_same, converted, package
from rbtools.models.programs import Loaded, Program, ProgramFormat
from rbtools.plain_files import read_plain

# The types of inputs: in those of floats, pixels are in [0, 1] before the normalisation.
_TYPES = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16, "tensor(uint8)": torch.uint8}
_EXPECTED = "Expected images (N, C, H, W) or (N, H, W, C) with 1 or 3 channels, of float32, float16 or uint8"
_IMAGES = 64  # random images on which a converted network is compared with onnxruntime
_AGAIN = 8  # random images for a model of a record, which was compared when the record was made
# Operators of quantised graphs, which have no gradients: QLinearConv, ConvInteger ...
_QUANTISED = re.compile("Q|Dequantize|DynamicQuantize|.*Integer")


class Onnx(ProgramFormat):
    name, what, runs_code = "onnx", "an ONNX model", False

    @staticmethod
    def holds(head: bytes, names: Sequence[str]) -> bool:
        """Whether a file begins like an ONNX model, with the version and another field."""
        return re.match(rb"\x08[\x03-\x7f][\x12\x1a\x22\x28\x32\x3a\x42\x72]", head) is not None

    @staticmethod
    def read(path: Path, arch: Mapping[str, Any], shape: Shape, hints: NormalizationHints) -> Loaded:
        proto = _model(path)
        graph = OnnxGraph.of(proto.SerializeToString(), path, shape)
        if any(node.op_type.startswith("DynamicQuantize") for node in proto.graph.node):
            graph.batch = graph.batch or 1  # its scales depend on the batch: each image is a batch
        logits = graph(torch.rand(2, *shape, generator=torch.Generator().manual_seed(1)))
        choices = None
        if graph.dtype == torch.uint8:
            if arch.get("normalize", RAW) != RAW:
                raise RbError(f"The ONNX model {path} takes uint8 pixels. Leave out --normalize.")
            choices = Choices({RAW: {"normalize": RAW}}, "checkpoint")
        answering = Program(AnsweringModel(graph, "logits", logits.shape[1]))
        if arch.get("answers") == "logits":  # a record says so: it was tried
            return Loaded(answering, {"answers": "logits"}, choices=choices)
        count = _AGAIN if "space" in arch else _IMAGES
        images = torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))
        for batch, _ in hints.batches() if hints.batches else ():
            images = torch.cat([images, batch])
            break
        try:
            network = _converted(proto, graph, images)
            facts = {"answers": "logits and gradients, because its graph was converted to torch"}
            return Loaded(network, {}, facts, choices)
        except NotConverted as reason:
            if "space" in arch:
                raise RbError(
                    f"The ONNX model {path} was converted to torch when its record was created, but cannot be"
                    f" converted now: {reason}. Create the record again with --checkpoint."
                ) from None
            facts = {"answers": f"logits without gradients: {reason}"}
            return Loaded(answering, {"answers": "logits"}, facts, choices)


def _model(path: Path) -> Any:
    """The model in a file and, if there is one, in the file of weights next to it
    (`plain_files.shards_of`)."""
    onnx = package("onnx")
    model = onnx.load_model_from_string(read_plain(path))
    entries = [entry for tensor in model.graph.initializer for entry in tensor.external_data]
    outside = {entry.value for entry in entries if entry.key == "location"}
    if outside - {f"{path.name}.data"}:
        raise RbError(
            f"The weights of the ONNX model {path} are in {shown(', '.join(sorted(outside)))}. Expected them"
            f" in the model's own file, or in {path.name}.data next to it. Save the model again with"
            " onnx.save(onnx.load(FILE), OTHER)."
        )
    if outside:
        onnx.load_external_data_for_model(model, str(path.parent))
    return model


@dataclass(eq=False)
class OnnxGraph:
    """Maps images float32 (N, C, H, W) in [0, 1] to scores (N, K) with onnxruntime.

    `batch` is the batch size, if the graph fixes it.
    """

    model: bytes
    name: str
    dtype: torch.dtype
    channels_last: bool
    batch: int | None
    output: str | None = None
    sessions: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: bytes, path: Path, shape: Shape) -> OnnxGraph:
        """Create an OnnxGraph. Raises RbError if the graph does not map images of this shape to scores."""
        graph = cls(model, "", torch.float32, False, None)
        inputs = graph.session(torch.device("cpu")).get_inputs()
        listed = ", ".join(f"{shown(one.name)} {one.type} {one.shape}" for one in inputs)
        sides = inputs[0].shape[1:] if inputs else []
        first_or_last = [side in (1, 3) for side in (sides[:1] + sides[2:])]
        if len(inputs) != 1 or len(sides) != 3 or inputs[0].type not in _TYPES or sum(first_or_last) != 1:
            raise RbError(
                f"The ONNX model {path} has the inputs {listed or 'none'}. {_EXPECTED}: export the model"
                " with one input of this kind and with a fixed number of channels."
            )
        graph.name, graph.dtype = inputs[0].name, _TYPES[inputs[0].type]
        graph.channels_last, fixed = first_or_last[1], inputs[0].shape[0]
        graph.batch = fixed if isinstance(fixed, int) else None
        channels, *size = sides[-1:] + sides[:-1] if graph.channels_last else sides
        if channels != shape[0]:
            raise Misfit(
                f"The ONNX model {path} takes images with {channels} channels, but the data set has"
                f" {shape[0]}. Name the data set that it was trained for with --dataset.",
                channels=channels,
            )
        if any(isinstance(a, int) and a != b for a, b in zip(size, shape[1:], strict=True)):
            raise RbError(
                f"The ONNX model {path} takes images of {'x'.join(map(str, size))} pixels, but the data set"
                f" has {shape[1]}x{shape[2]}. Name the data set that it was trained for with --dataset."
            )
        graph.output = graph._scores(path, torch.zeros(2, *shape))
        return graph

    def _scores(self, path: Path, images: Tensor) -> str:
        """The name of the first output of shape (N, K)."""
        names = [one.name for one in self.session(images.device).get_outputs()]
        found = {}
        for name in names:
            self.output = name
            found[name] = self(images)
            if found[name].dim() == 2 and len(found[name]) == len(images) and found[name].is_floating_point():
                return name
        listed = ", ".join(f"{shown(name)} {tuple(value.shape)}" for name, value in found.items())
        raise RbError(
            f"The ONNX model {path} returns {listed} for {len(images)} images. Expected floating-point scores"
            f" of shape ({len(images)}, classes)."
        )

    def __call__(self, images: Tensor) -> Tensor:
        inputs = images.permute(0, 2, 3, 1) if self.channels_last else images
        inputs = inputs.mul(255).round().clamp(0, 255) if self.dtype == torch.uint8 else inputs
        session = self.session(images.device)

        def answers(part: Tensor) -> Tensor:
            feed = {self.name: part.to(self.dtype).contiguous().cpu().numpy()}
            return torch.from_numpy(session.run([self.output], feed)[0])

        return answers(inputs) if self.batch is None else in_pieces(answers, inputs, self.batch)

    def session(self, device: torch.device) -> Any:
        """The onnxruntime session for a device, with as many threads as torch uses."""
        key = device, torch.get_num_threads()
        if key not in self.sessions:
            onnxruntime = package("onnxruntime")
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
            options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
            options.use_deterministic_compute = True
            options.log_severity_level = 4
            # Threads that wait for work sleep, because torch's threads share the cores.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            providers: list[Any] = ["CPUExecutionProvider"]
            if device.type == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
                # TF32 has 10 bits, and verdicts are those of float32.
                cuda = {"device_id": device.index or 0, "use_tf32": 0, "cudnn_conv_algo_search": "DEFAULT"}
                providers.insert(0, ("CUDAExecutionProvider", cuda))
            self.sessions[key] = onnxruntime.InferenceSession(self.model, options, providers=providers)
        return self.sessions[key]

    def __deepcopy__(self, _: object) -> OnnxGraph:
        return self  # a session does not change

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "sessions": {}}


def in_pieces(function: Callable[[Tensor], Tensor], images: Tensor, size: int) -> Tensor:
    """Call a function that takes exactly `size` images at a time, and join its outputs. The last piece is
    padded with black images."""
    found = []
    for part in images.split(size):
        rest = part.new_zeros(size - len(part), *part.shape[1:])
        found.append(function(torch.cat([part, rest]))[: len(part)])
    return torch.cat(found)


class _ChannelsLast(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.permute(0, 2, 3, 1)


class _InPieces(nn.Module):
    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network, self.size = network, size

    def forward(self, images: Tensor) -> Tensor:
        return in_pieces(self.network, images, self.size)


def _converted(proto: Any, graph: OnnxGraph, images: Tensor) -> nn.Module:
    """The torch network for images (N, C, H, W) in [0, 1]. Raises NotConverted if its outputs differ."""
    if graph.dtype != torch.float32:
        raise NotConverted(f"its input has the type {str(graph.dtype).removeprefix('torch.')}")
    if any(_QUANTISED.match(node.op_type) for node in proto.graph.node):
        raise NotConverted("it is quantised")
    outputs = [one for one in proto.graph.output if one.name == graph.output]
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    network = converted(proto)
    network = nn.Sequential(_ChannelsLast(), network) if graph.channels_last else network
    expected = graph(images)
    try:
        check_same(network, images, expected)
    except NotConverted:
        if graph.batch is None:
            raise
        network = _InPieces(network, graph.batch).eval()
        check_same(network, images, expected)
    return network
