"""The rows that wait for a place, in the order in which they get one."""

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterable

from services.inference.engine.scheduling.sequence import Row


class WaitingRows:
    """Preempted rows first, the oldest at the head; then one row of each job in turn, jobs in the order of arrival.

    A job of many rows so takes its turn like any other, and no row waits for more than one row of each job before it
    at a time. Nobody overtakes the head: a row that needs much room gets it.
    """

    def __init__(self) -> None:
        self._preempted: list[Row] = []
        self._jobs: OrderedDict[int, deque[Row]] = OrderedDict()
        self._num_fresh = 0

    def __len__(self) -> int:
        return len(self._preempted) + self._num_fresh

    @property
    def head(self) -> Row | None:
        """The row whose turn it is."""
        if self._preempted:
            return self._preempted[0]
        return next(iter(self._jobs.values()))[0] if self._jobs else None

    def add(self, job_id: int, rows: Iterable[Row]) -> None:
        """Queue the rows of a new job."""
        waiting = deque(rows)
        if waiting:
            self._jobs[job_id] = waiting
            self._num_fresh += len(waiting)

    def put_back(self, row: Row) -> None:
        """Queue a preempted row."""
        insort(self._preempted, row, key=lambda other: other.age)

    def pop(self) -> Row:
        """Take the head; its job's next row waits for its turn."""
        if self._preempted:
            return self._preempted.pop(0)
        job_id, rows = next(iter(self._jobs.items()))
        row = rows.popleft()
        self._num_fresh -= 1
        if rows:
            self._jobs.move_to_end(job_id)
        else:
            del self._jobs[job_id]
        return row

    def remove(self, row: Row) -> None:
        """Take a row out, wherever it is."""
        if row.age >= 0:
            self._preempted.remove(row)
            return
        rows = self._jobs[row.job_id]
        rows.remove(row)
        self._num_fresh -= 1
        if not rows:
            del self._jobs[row.job_id]
