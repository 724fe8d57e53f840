"""The memory that a training step asks for, recorded without computing anything."""

import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainer.components.loss import LOSS_OPERATOR, loss_of_rows

_OURS = {LOSS_OPERATOR: loss_of_rows}  # our own operators; tensors without values have no rows to leave out


class AllocationTrace(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch gives it no types
    """Records when the storage of each tensor is allocated and freed, in the order of the real step.

    Run under torch's FakeTensorMode, where tensors have shapes and no values: what autograd keeps and what operators
    make on the way then follow from the code itself. Memory that an operator takes internally is not seen, except
    in our own operators, which run step by step.

    Attributes:
        component: The component of the storages allocated from now on.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.component = ""
        self._allocations: list[tuple[int, str]] = []  # bytes and component of each storage
        self._events: list[int] = []  # n where storage n is allocated, -n - 1 where it is freed
        self._live: dict[int, int] = {}  # number of each storage by its address

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator, and record its results."""
        ours = _OURS.get(func.name())
        if ours is not None:
            with self:
                return ours(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._record(leaf)
        return result

    def _record(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._live:
            return
        number = self._live[address] = len(self._allocations)
        self._allocations.append((storage.nbytes(), self.component))
        self._events.append(number)
        weakref.finalize(storage, self._free, address)

    def _free(self, address: int) -> None:
        self._events.append(-self._live.pop(address) - 1)

    def assign(self, tensor: Tensor, component: str) -> None:
        """Assign a storage to a component once that is known."""
        number = self._live[tensor.untyped_storage()._cdata]
        self._allocations[number] = (self._allocations[number][0], component)

    def peak(self) -> dict[str, int]:
        """Bytes of each component at the moment when all together take the most."""
        total = most = end = 0
        for place, event in enumerate(self._events):
            total += self._allocations[event][0] if event >= 0 else -self._allocations[-event - 1][0]
            if total > most:
                most, end = total, place + 1
        live: set[int] = set()
        for event in self._events[:end]:
            if event >= 0:
                live.add(event)
            else:
                live.discard(-event - 1)
        components: dict[str, int] = {}
        for number in sorted(live):
            size, component = self._allocations[number]
            components[component] = components.get(component, 0) + size
        return components


def label_modules(trace: AllocationTrace, model: nn.Module, names: Mapping[str, str]) -> None:
    """Assign the tensors of a module's forward pass to a component.

    Args:
        trace: Records the tensors.
        model: Holds the modules.
        names: The component by the last part of a module's name; the innermost module that is named counts.
    """
    outer: list[str] = []

    def enter(component: str) -> None:
        outer.append(trace.component)
        trace.component = component

    def leave() -> None:
        trace.component = outer.pop()

    for path, module in model.named_modules():
        component = names.get(path.rpartition(".")[2])
        if component is not None:
            module.register_forward_pre_hook(lambda *_, name=component: enter(name))
            # Also where recomputing a block ends in an exception, once it has all that the backward pass needs.
            module.register_forward_hook(lambda *_: leave(), always_call=True)
