"""The sequences that wait for a slot, in the order in which they get one."""

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterable

from services.inference.engine.scheduling.sequence import Sequence


class WaitingQueue:
    """Preempted sequences first, the oldest at the head; then one of each request in turn, in the order of arrival.

    So a request of many sequences takes its turn like any other, and no sequence waits for more than one of each
    request before it at a time. The head is never overtaken: a sequence that needs many blocks gets them.
    """

    def __init__(self) -> None:
        self._preempted: list[Sequence] = []
        self._requests: OrderedDict[int, deque[Sequence]] = OrderedDict()  # by request id
        self._num_new = 0

    def __len__(self) -> int:
        return len(self._preempted) + self._num_new

    @property
    def head(self) -> Sequence | None:
        """The sequence whose turn it is."""
        if self._preempted:
            return self._preempted[0]
        return next(iter(self._requests.values()))[0] if self._requests else None

    def add(self, request_id: int, sequences: Iterable[Sequence]) -> None:
        """Queue the sequences of a new request."""
        waiting = deque(sequences)
        if waiting:
            self._requests[request_id] = waiting
            self._num_new += len(waiting)

    def put_back(self, sequence: Sequence) -> None:
        """Queue a preempted sequence."""
        insort(self._preempted, sequence, key=lambda other: other.admission)

    def pop(self) -> Sequence:
        """Remove and return the head; its request's next sequence goes behind the other requests."""
        if self._preempted:
            return self._preempted.pop(0)
        request_id, sequences = next(iter(self._requests.items()))
        sequence = sequences.popleft()
        self._num_new -= 1
        if sequences:
            self._requests.move_to_end(request_id)
        else:
            del self._requests[request_id]
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, wherever it is in the queue."""
        if sequence.admission >= 0:
            self._preempted.remove(sequence)
            return
        sequences = self._requests[sequence.id.request_id]
        sequences.remove(sequence)
        self._num_new -= 1
        if not sequences:
            del self._requests[sequence.id.request_id]
