"""Work on a GPU recorded as CUDA graphs: launched kernel by kernel, small batches take the CPU longer than the GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


class Recorder:
    """Makes CUDA graphs that share their memory: what one leaves there is used before another begins."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """The stream tells the device, which need not be the current one. Graphs to be replayed while other recorders'
        are at work are given the one that they are replayed on."""
        self.pool, self.stream = torch.cuda.graph_pool_handle(), stream
        self.made = 0
        """Graphs so far."""

    def record(self, work: Callable[[], object]) -> Callable[[], object]:
        """Does the work, and gives what does it again."""
        graph, self.made = torch.cuda.CUDAGraph(), self.made + 1
        # of the kernels that take masks, not cuDNN's, which are planned anew for every shape
        masked = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
        with out_of_memory_of_any_kind(), masked, torch.cuda.device(self.stream.device):
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                work()  # lazy parts, such as cuBLAS handles and caches, are made outside of the graph
            torch.cuda.current_stream().wait_stream(self.stream)
            # Waits for all that the GPU was asked; other threads may use it. On our stream, too: cuBLAS has memory for
            # each stream, and graphs that were recorded on one could not run at the same time.
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                work()
        return graph.replay


@contextmanager
def out_of_memory_of_any_kind() -> Iterator[None]:
    """Graphs and kernels have memory of the driver's, for want of which its own errors come."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" not in str(error):
            raise
        raise torch.OutOfMemoryError(str(error)) from error


def power_of_two(size: int) -> int:
    """Up. Graphs have fixed shapes, so that batches are padded to one of a few."""
    return 1 << (size - 1).bit_length()
