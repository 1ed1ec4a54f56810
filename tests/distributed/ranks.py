"""Run a function on several ranks, each a process, that communicate by gloo."""

import multiprocessing
import pickle
import tempfile
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

RANKS = 2
PATIENCE = 120  # seconds until ranks that wait for each other are taken to do so for ever
# Processes that have torch already: else each would take seconds to begin.
context = multiprocessing.get_context("forkserver")
PRELOADED = (
    "aotkit.api",
    "torch._dynamo",
    "torch._functorch.partitioners",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
)
context.set_forkserver_preload([*PRELOADED])


def on_ranks(function, *args, ranks=RANKS, timeout=PATIENCE):
    """What `function(rank, *args)` returns on each rank; of one that raised, that, and of one that died, None.

    Args:
        timeout: seconds that ranks wait for each other.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
        processes = [
            context.Process(target=_run, args=(write, function, rank, ranks, f"{folder}/store", timeout, args))
            for rank, (_, write) in enumerate(pipes)
        ]
        for process, (_, write) in zip(processes, pipes, strict=True):
            process.start()
            write.close()  # so that reading ends where the process does
        end = time.monotonic() + PATIENCE
        try:
            return [_result(read, end) for read, _ in pipes]
        finally:
            for process in processes:
                process.kill()
                process.join()


def _result(read, end):
    assert read.poll(max(end - time.monotonic(), 0)), "the ranks wait for each other"
    try:
        return pickle.loads(read.recv_bytes())
    except EOFError:
        return None


def _run(write, function, rank, ranks, store, timeout, args):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    seconds = timedelta(seconds=timeout)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=seconds)
    try:
        result = function(rank, *args)
    except Exception as e:
        e.add_note(traceback.format_exc())
        result = e
    write.send_bytes(pickle.dumps(result))  # tensors, too: this process may end at once
    write.close()
    dist.destroy_process_group()


def results_of(function, *args, **options):
    """The same where no rank may raise or die."""
    results = on_ranks(function, *args, **options)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results
