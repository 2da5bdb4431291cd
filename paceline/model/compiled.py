"""Decoder layers as compiled graphs: what lies between the linear layers and attention is fused by
Inductor, where most of a step's time outside of them went (docs/log.md).

Works on any architecture whose layers can be traced; layers that are alike share one graph, which
Inductor keeps in its cache. Where compiling fails the layers stay as they are, with the reason in
the log. The row count of a graph is symbolic, so that rows have the same code whatever their
number; whether they also have the same bits is for the self-check to find (numerics.py).
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
from torch import Tensor, nn
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.cpp_builder import get_compiler_version_info, get_cpp_compiler
from torch._inductor.cpu_vec_isa import pick_vec_isa, supported_vec_isa_list, x86_isa_checker
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

log = logging.getLogger(__name__)

# Any count that no size of a model equals.
TRACED_ROWS = 11


def compile_layers(model: nn.Module, run: Callable[[], object], folder: Path) -> bool:
    """Replace the forward of every decoder layer. False, and nothing replaced, if that fails.

    run: one forward of the model, by which the layers' arguments are found.
    """
    # Inductor has no other way to be told, and has set its own default when it was imported.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    layers = _decoder_layers(model)
    start_s = time.monotonic()
    try:
        calls = _recorded_calls(layers, run)
        graphs: dict[object, Any] = {}
        forwards = []
        with _instructions_tried(folder):
            for layer, (args, kwargs) in zip(layers, calls, strict=True):
                kind = _kind(layer)
                if kind not in graphs:
                    if len(graphs) == 4:
                        raise ValueError("the layers are of more than 4 kinds")
                    graphs[kind] = _compile(layer, args, kwargs)
                forwards.append(_forward(graphs[kind], layer))
    except Exception as error:
        # Whatever a compiler may raise: the model runs without it.
        log.warning("decoder layers are not compiled (%s: %s)", type(error).__name__, error)
        return False
    for layer, forward in zip(layers, forwards, strict=True):
        layer.forward = forward
    log.info(
        "compiled %d decoder layers as %d graphs in %.1f s",
        len(layers),
        len(graphs),
        time.monotonic() - start_s,
    )
    return True


def restore_layers(model: nn.Module) -> None:
    """Undo `compile_layers`."""
    for layer in _decoder_layers(model):
        del layer.forward


def _decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The longest list of modules of one type."""
    lists = [
        m for m in model.modules() if isinstance(m, nn.ModuleList) and len({*map(type, m)}) == 1
    ]
    return list(max(lists, key=len, default=[]))


def _recorded_calls(
    layers: Sequence[nn.Module], run: Callable[[], object]
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))

    hooks = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    if len(calls) != len(layers):
        raise ValueError(f"{len(calls)} calls of {len(layers)} layers")
    return calls


def _kind(layer: nn.Module) -> object:
    """Equal for layers that one graph can serve: same modules, sizes and settings."""
    described: list[object] = []
    for name, module in layer.named_modules():
        settings = {
            key: value
            for key, value in vars(module).items()
            if isinstance(value, bool | int | float | str | None) and key != "layer_idx"
        }
        described.append((name, type(module), tuple(sorted(settings.items(), key=repr))))
    shapes = tuple(
        (n, t.shape, t.dtype) for (_, n), t in zip(_slots(layer), _tensors(layer), strict=True)
    )
    return tuple(described), shapes


def _slots(layer: nn.Module) -> list[tuple[nn.Module, str]]:
    """Where the layer's tensors are: parameters, buffers and handles, each module once."""
    return [
        (module, name)
        for module in layer.modules()
        for name in (*module._parameters, *module._buffers)
        if getattr(module, name) is not None
    ]


def _tensors(layer: nn.Module) -> list[Tensor]:
    return [getattr(module, name).detach() for module, name in _slots(layer)]


def _flat(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among a layer's arguments, in order, tuples opened."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        parts = value if isinstance(value, tuple | list) else (value,)
        found += (part for part in parts if isinstance(part, Tensor))
    return found


def _filled(value: Any, tensors: Iterable[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return next(iter(tensors))
    if isinstance(value, tuple | list):
        return type(value)(_filled(part, tensors) for part in value)
    return value


def _compile(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A callable of [arguments' tensors, layer's tensors] that gives the layer's output."""
    slots = _slots(layer)
    given = _flat(args, kwargs)
    # Whatever has TRACED_ROWS of something in the recorded forward has a row for each of it.
    mode = FakeTensorMode(shape_env=ShapeEnv())

    def fake(tensor: Tensor, *, may_vary: bool) -> Tensor:
        sizes = [
            DimDynamic.DYNAMIC if may_vary and size == TRACED_ROWS else DimDynamic.STATIC
            for size in tensor.shape
        ]
        context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
        return mode.from_tensor(tensor, symbolic_context=context)

    def traced(*tensors: Tensor) -> tuple[Tensor]:
        filling = iter(tensors[: len(given)])
        with _replaced(slots, tensors[len(given) :]):
            output = layer.forward(*_filled(args, filling), **_filled_mapping(kwargs, filling))
        output = output[0] if isinstance(output, tuple) else output
        assert isinstance(output, Tensor)
        return (output,)

    inputs = [fake(t.clone(), may_vary=True) for t in given]
    inputs += [fake(t, may_vary=False) for t in _tensors(layer)]

    # Its checks of sizes and strides take as long as the graph's own work on one row.
    unchecked = torch._inductor.config.patch(size_asserts=False, alignment_asserts=False)
    # Without a tracing context Inductor generates the same code anew at every start.
    with torch.no_grad(), unchecked, tracing(TracingContext(mode)):
        graph = make_fx(traced, decomposition_table=select_decomp_table())(*inputs)
        return compile_fx_inner(graph, inputs, is_inference=True)


@contextlib.contextmanager
def _instructions_tried(folder: Path) -> Iterator[None]:
    """Keeps in `folder` what Inductor would find again by ten processes at every start: that the
    compiler builds for all that the processor has."""
    file = folder / "instructions"
    flags = x86_isa_checker()
    best = (str(isa) for isa in supported_vec_isa_list if {*str(isa).split()} <= {*flags})
    compiler = get_compiler_version_info(get_cpp_compiler())
    tried = f"torch {torch.__version__}, {compiler}: "
    wanted = f"{tried}{next(best, None)}"
    if file.exists() and file.read_bytes() == wanted.encode():
        with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):
            yield
        return
    yield
    if wanted == f"{tried}{pick_vec_isa()}":
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(wanted.encode())


def _filled_mapping(kwargs: Mapping[str, Any], tensors: Iterable[Tensor]) -> dict[str, Any]:
    return {key: _filled(value, tensors) for key, value in kwargs.items()}


@contextlib.contextmanager
def _replaced(slots: Sequence[tuple[nn.Module, str]], tensors: Sequence[Tensor]) -> Iterator[None]:
    """Other tensors in a layer's slots for the time of a trace."""
    kept: list[tuple[dict[str, Any], str, Any]] = []
    for (module, name), tensor in zip(slots, tensors, strict=True):
        held: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
        kept.append((held, name, held.pop(name)))
        module.__dict__[name] = tensor
    try:
        yield
    finally:
        for (module, _), (held, name, tensor) in zip(slots, kept, strict=True):
            del module.__dict__[name]
            held[name] = tensor


def _forward(graph: Any, layer: nn.Module) -> Callable[..., Tensor]:
    own = _tensors(layer)

    def forward(*args: Any, **kwargs: Any) -> Tensor:
        output: Tensor = graph([*_flat(args, kwargs), *own])[0]
        return output

    return forward
