"""What may differ between a builder and a service: each function changes the service in one way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Service:
    model: Any
    inputs: dict[str, Any]

    @property
    def device(self) -> str:
        return str(next(self.model.parameters()).device.type)

    def first(self, *kinds: type) -> Any:
        """Return the model's first module of these kinds."""
        return next(module for module in self.model.modules() if isinstance(module, kinds))


def replaced_parameter(service: Service) -> None:
    module = service.first(torch.nn.Linear)
    module.weight = torch.nn.Parameter(module.weight.detach() * 2)


def patched_method(service: Service) -> None:
    kind = type(service.first(torch.nn.LayerNorm, torch.nn.Linear))
    forward = kind.forward
    kind.forward = lambda self, value: forward(self, value) * 2


def patched_function(_: Service) -> None:
    linear = torch.nn.functional.linear
    torch.nn.functional.linear = lambda *args: linear(*args) * 2


def patched_instance(service: Service) -> None:
    module = service.first(torch.nn.Linear)
    forward = module.forward
    module.forward = lambda value: forward(value) * 2


def larger_batch(service: Service) -> None:
    service.inputs = {name: torch.cat([value, value]) for name, value in service.inputs.items()}


def tied_weights(service: Service) -> None:
    first, *others = [module for module in service.model.modules() if isinstance(module, torch.nn.Linear)]
    for other in others:
        if other.weight.shape == first.weight.shape:
            other.weight = first.weight


def other_epsilon(service: Service) -> None:
    for module in service.model.modules():
        for name in {"eps", "variance_epsilon"} & vars(module).keys():
            setattr(module, name, 0.5)


def other_weights(service: Service) -> None:
    for parameter in service.model.parameters():
        parameter.data.mul_(1.5)


def _double(_module: Any, _inputs: Any, output: Any) -> Any:
    return output * 2


DIFFERENCES: dict[str, Callable[[Service], object]] = {
    "none": lambda _: None,
    "other weights": other_weights,
    "model.train()": lambda service: service.model.train(),
    "gradients on": lambda _: torch.set_grad_enabled(True),
    "another keyword": lambda service: service.inputs.update(output_hidden_states=True),
    "parameters of float64": lambda service: service.model.double(),
    "a parameter replaced": replaced_parameter,
    "a forward hook": lambda service: service.first(torch.nn.Linear).register_forward_hook(_double),
    "a patched method of a class": patched_method,
    "a patched function of torch": patched_function,
    "a patched method of an instance": patched_instance,
    "another batch size": larger_batch,
    "tied weights": tied_weights,
    "another attribute of modules": other_epsilon,
    "autocast": lambda service: torch.autocast(service.device, torch.bfloat16).__enter__(),
    "another default dtype": lambda _: torch.set_default_dtype(torch.float64),
    "deterministic algorithms": lambda _: torch.use_deterministic_algorithms(True),
    "inference mode": lambda _: torch.inference_mode().__enter__(),
}
