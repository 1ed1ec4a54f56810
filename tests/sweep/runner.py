"""Runs cases in worker processes, and keeps every result in `.sweep/results.jsonl`, so that a sweep can be continued.

A worker that crashes or exceeds the time limit costs one sample, not the sweep.
"""

import ast
import dataclasses
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
import torch._inductor.config as inductor

from tests.sweep.opinfo import Case, Outcome, run_case

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".sweep"
WORKERS = len(os.sched_getaffinity(0))
TIME_LIMIT = 600.0  # seconds for one sample
LINE_EVERY = 30.0  # seconds between progress lines where the output is not a terminal


@dataclasses.dataclass
class Result:
    """What became of one case; a sample without an outcome passed."""

    case: Case
    failures: list[Outcome]
    seconds: float


def run(cases: Sequence[Case]) -> list[Result]:
    """The results of all cases, in their order: those kept from earlier sweeps, and the others after running them."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / "results.jsonl"
    kept = _read(path)
    results = {case: kept[key(case)] for case in cases if key(case) in kept}
    missing = [case for case in cases if case not in results]
    progress = Progress(len(cases), list(results.values()))
    with path.open("a", encoding="utf-8") as file:
        if file.tell():
            file.write("\n")  # ends a line that a killed sweep left unfinished
        for result in _run_all(missing, progress.show):
            results[result.case] = result
            progress.add(result)
            file.write(json.dumps({"key": key(result.case), **dataclasses.asdict(result)}) + "\n")
            file.flush()
    progress.end()
    return [results[case] for case in cases]


def key(case: Case) -> str:
    """Equal for runs that must have equal results: the same case, torch, and code."""
    code = code_hash(case.backend, case.partition)
    return " ".join(map(str, (torch.__version__, code, *dataclasses.astuple(case))))


def code_hash(backend: str, partition: str) -> str:
    """Of all code that decides on the result of a case, comments and layout aside."""
    folders = ("aotkit", "aotkit/torch_private", "aotkit/passes", "aotkit/joint", "aotkit/runtime", "aotkit/inspection")
    core = [p for folder in folders for p in sorted((ROOT / folder).glob("*.py"))]
    plugins = [ROOT / f"backends/{backend}.py", ROOT / f"partitioners/{partition}.py"]
    code = [_code_hash(p) for p in (*core, *plugins, Path(__file__).with_name("opinfo.py"))]
    return hashlib.sha256("".join(code).encode()).hexdigest()[:16]


_hashes: dict[Path, str] = {}


def _code_hash(path: Path) -> str:
    if path not in _hashes:
        _hashes[path] = hashlib.sha256(ast.dump(ast.parse(path.read_text(encoding="utf-8"))).encode()).hexdigest()
    return _hashes[path]


def _read(path: Path) -> dict[str, Result]:
    """Earlier results by key. A line that a killed sweep left unfinished is skipped."""
    kept = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        failures = [Outcome(**f) for f in entry["failures"]]
        kept[entry["key"]] = Result(Case(**entry["case"]), failures, entry["seconds"])
    return kept


class Progress:
    """One line that is written over: cases done, the newest operator, time, failures of samples so far."""

    def __init__(self, total: int, kept: Sequence[Result]) -> None:
        self._total = total
        self._done = len(kept)
        self._failures = sum(len(r.failures) for r in kept)
        self._start = self._shown = time.monotonic()

    def add(self, result: Result) -> None:
        self._done += 1
        self._failures += len(result.failures)

    def show(self, running: Sequence[Case]) -> None:
        now = time.monotonic()
        terminal = sys.stdout.isatty()
        if not terminal and now - self._shown < LINE_EVERY:
            return
        self._shown = now
        minutes, seconds = divmod(int(now - self._start), 60)
        names = ", ".join(f"{c.operator} ({c.backend}, {c.partition})" for c in running)
        line = f"{self._done}/{self._total} cases, {minutes}:{seconds:02}, {self._failures} samples failed; {names}"
        print(f"\r\033[K{line[:110]}" if terminal else line, end="" if terminal else "\n", flush=True)

    def end(self) -> None:
        if sys.stdout.isatty():
            print("\r\033[K", end="")


def _run_all(cases: Sequence[Case], show: Callable[[Sequence[Case]], None]) -> Iterator[Result]:
    queue = list(reversed(cases))
    workers = [Worker(i) for i in range(min(WORKERS, len(queue)))]
    try:
        while queue or any(w.case for w in workers):
            for worker in workers:
                if worker.case is None and queue:
                    worker.begin(queue.pop())
            wait([w.pipe for w in workers if w.case], timeout=1.0)
            show([w.case for w in workers if w.case])
            for worker in workers:
                if worker.case is not None and (result := worker.poll()) is not None:
                    yield result
    finally:
        for worker in workers:
            worker.stop()


class Worker:
    """A process that runs one case at a time, and is replaced when it dies."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.case: Case | None = None
        self._launch()

    def _launch(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        log = str(FOLDER / f"worker{self._number}.log")
        self._process = context.Process(target=work, args=(theirs, log), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, case: Case) -> None:
        self.case = case
        self._failures: list[Outcome] = []
        self._started = time.monotonic()
        self._begin_sample(0)
        self.pipe.send((case, 0))

    def _begin_sample(self, number: int) -> None:
        self._sample = number
        self._sample_started = time.monotonic()

    def poll(self) -> Result | None:
        """Take what the worker says; the result once its case is finished."""
        assert self.case is not None
        try:
            while self.pipe.poll():
                kind, value = self.pipe.recv()
                if kind == "done":
                    return self._finish()
                if kind == "at":
                    self._begin_sample(value)
                else:
                    self._failures.append(value)
        except (EOFError, ConnectionResetError):
            return self._replace("Crash")
        if time.monotonic() - self._sample_started > TIME_LIMIT:
            return self._replace("Timeout")
        return None

    def _replace(self, error: str) -> Result | None:
        """Record the sample at which the worker ended, and continue behind it in a new one."""
        assert self.case is not None
        if error == "Crash":
            self._process.join(10)  # its pipe closes a moment before it has an exit code
        message = _exit(self._process.exitcode) if error == "Crash" else f"it took over {TIME_LIMIT:g} s"
        self._failures.append(Outcome(self._sample, error, message))
        self.stop()
        self._launch()
        if self._sample + 1 >= self.case.samples:
            return self._finish()
        self._begin_sample(self._sample + 1)
        self.pipe.send((self.case, self._sample))
        return None

    def _finish(self) -> Result:
        assert self.case is not None
        result = Result(self.case, self._failures, round(time.monotonic() - self._started, 1))
        self.case = None
        return result

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _exit(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"


def work(pipe: Connection, log: str) -> None:
    """The life of a worker process: take cases, tell each sample's number and failure."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.set_num_threads(1)
    inductor.compile_threads = 1
    while True:
        try:
            case, start = pipe.recv()
        except EOFError:
            return
        print(case, flush=True)
        for outcome in run_case(case, start, lambda i: pipe.send(("at", i))):
            if outcome.error is not None:
                pipe.send(("failure", outcome))
        pipe.send(("done", None))
