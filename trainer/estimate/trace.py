"""The memory that a training step asks for, recorded without computing anything."""

import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainer.components.loss import LOSS_OPERATOR, chunked_loss

_OURS = {LOSS_OPERATOR: chunked_loss}  # our own operators


class AllocationTrace(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch gives it no types
    """Notes when the storage of each tensor is born and dies, in the order of the real step.

    Run under torch's FakeTensorMode, where tensors have shapes and no values: what autograd keeps, and what an operator
    makes on the way, is then what the code at hand does and not what someone counted once. Memory that an operator
    takes within itself is not seen, but for our own operators, which are run step by step.

    Attributes:
        component: What the storages that are born now belong to.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.component = ""
        self._births: list[tuple[int, str]] = []  # bytes and component of each storage
        self._events: list[int] = []  # n where storage n is born, -n - 1 where it dies
        self._living: dict[int, int] = {}  # number of each storage by its address

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator, and note its results."""
        ours = _OURS.get(func.name())
        if ours is not None:
            with self:
                return ours(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._note(leaf)
        return result

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._living:
            return
        number = self._living[address] = len(self._births)
        self._births.append((storage.nbytes(), self.component))
        self._events.append(number)
        weakref.finalize(storage, self._bury, address)

    def _bury(self, address: int) -> None:
        self._events.append(-self._living.pop(address) - 1)

    def belongs(self, tensor: Tensor, component: str) -> None:
        """Say what a storage belongs to, now that it is known."""
        number = self._living[tensor.untyped_storage()._cdata]
        self._births[number] = (self._births[number][0], component)

    def peak(self) -> dict[str, int]:
        """Bytes of each component at the moment when all together take the most."""
        total = most = end = 0
        for place, event in enumerate(self._events):
            total += self._births[event][0] if event >= 0 else -self._births[-event - 1][0]
            if total > most:
                most, end = total, place + 1
        living: set[int] = set()
        for event in self._events[:end]:
            if event >= 0:
                living.add(event)
            else:
                living.discard(-event - 1)
        components: dict[str, int] = {}
        for number in sorted(living):
            size, component = self._births[number]
            components[component] = components.get(component, 0) + size
        return components


def label_modules(trace: AllocationTrace, model: nn.Module, names: Mapping[str, str]) -> None:
    """Let what a module makes in its forward pass belong to a component.

    Args:
        trace: Takes the notes.
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
            module.register_forward_hook(lambda *_: leave())
