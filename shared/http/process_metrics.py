"""What a service with several worker processes takes, under the names that `ProcessCollector` has for one process."""

import contextlib
from collections.abc import Iterator

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class ServiceProcesses(Collector):
    """Memory and CPU time of a supervisor and its workers together; the start is the supervisor's.

    Args:
        supervisor: Its process id.
    """

    def __init__(self, supervisor: int) -> None:
        self._supervisor = psutil.Process(supervisor)

    def collect(self) -> Iterator[Metric]:
        """The values of now; none once the supervisor has ended."""
        memory = 0
        try:
            workers = self._supervisor.children()
            times = self._supervisor.cpu_times()
            seconds = times.children_user + times.children_system  # of workers that have ended
            start = self._supervisor.create_time()
        except psutil.NoSuchProcess:
            return
        for process in (self._supervisor, *workers):
            with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
                memory += process.memory_info().rss
                seconds += process.cpu_times().user + process.cpu_times().system
        yield GaugeMetricFamily("process_resident_memory_bytes", "Memory of all processes, shared pages each", memory)
        yield CounterMetricFamily("process_cpu_seconds", "CPU time of all processes", seconds)
        yield GaugeMetricFamily("process_start_time_seconds", "When the supervisor started, in Unix time", start)
