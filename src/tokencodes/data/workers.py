"""Jobs on this machine: in this process, or in several that each take one input at a time.

A worker is `python -m tokencodes.data.workers`: jobs come in on its standard input, progress and
entries go out on its standard output. It knows no torch, it ends when its parent is gone, and
nothing that it leaves half-written is ever taken for a dataset.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tokencodes.data.convert import Job, Progress, convert
from tokencodes.data.encode import Engine, engine_for
from tokencodes.data.tokenizer import TokenizerFile
from tokencodes.errors import InputError

Done = Callable[[], None]


def run_jobs(
    jobs: list[Job],
    tokenizer: TokenizerFile,
    engine: Engine,
    workers: int,
    report: Callable[[Progress], None],
    done: Done,
) -> None:
    """Runs every job and calls `done` after each. The first error stops the other jobs."""
    if min(workers, len(jobs)) <= 1:
        encoder = engine_for(tokenizer, engine)
        for job in jobs:
            convert(job, encoder, report)
            done()
        return
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in sorted(
        jobs, key=lambda job: -job.input.bytes
    ):  # the largest first, so that none is left for the end
        waiting.put(job)
    crew: list[_Worker] = []
    try:
        for _ in range(min(workers, len(jobs))):
            crew.append(_Worker(tokenizer.path, engine, waiting, report, done))
        while any(worker.is_alive() for worker in crew):
            # before the others are ended, which is one too
            errors = [worker.error for worker in crew if worker.error]
            if errors:
                raise errors[0]
            time.sleep(0.02)
    finally:
        for worker in crew:
            worker.end()
    for worker in crew:
        if worker.error:
            raise worker.error


class _Worker(threading.Thread):
    """This side of one worker: hands it jobs and hears its reports."""

    def __init__(
        self,
        tokenizer: Path,
        engine: Engine,
        jobs: "queue.SimpleQueue[Job]",
        report: Callable[[Progress], None],
        done: Done,
    ) -> None:
        super().__init__(daemon=True)
        self._jobs, self._report, self._done = jobs, report, done
        self.error: Exception | None = None
        # One thread each: several workers with all cores each would only stand in each other's way.
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        command = [
            sys.executable,
            "-m",
            "tokencodes.data.workers",
            str(tokenizer),
            engine,
            str(os.getpid()),
        ]
        # Ctrl-C reaches the whole group, and the parent decides; a worker inherits that it is deaf
        # to it from its first moment.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.start()

    def run(self) -> None:
        """Until there is no job, or an error."""
        assert self._process.stdin and self._process.stdout
        try:
            while True:
                job = self._jobs.get_nowait()
                pickle.dump(job, self._process.stdin)
                self._process.stdin.flush()
                message = pickle.load(self._process.stdout)
                while isinstance(message, Progress):
                    self._report(message)
                    message = pickle.load(self._process.stdout)
                if isinstance(message, Exception):
                    raise message
                self._done()
        except queue.Empty:
            self._process.stdin.close()
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            self.error = InputError(
                f"{job.input.title}: its worker ended (exit status {self._process.wait()}); if"
                " memory ran out, use fewer --workers or a smaller --batch-mb. What was finished"
                " is intact: repeat the command"
            )
        except Exception as error:
            self.error = error

    def end(self) -> None:
        """Ends the process, now."""
        self._process.kill()
        self._process.wait()


def _watch_parent(parent: int) -> None:
    """Ends this process soon after its parent has ended, however that happened and be it before
    this process began.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """The worker process: converts the jobs from its standard input until the input ends."""
    _watch_parent(int(sys.argv[3]))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not fall among the messages

    def send(message: object) -> None:
        pickle.dump(message, out)
        out.flush()

    encoder = engine_for(TokenizerFile(Path(sys.argv[1])), sys.argv[2])  # type: ignore[arg-type]
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            send(convert(job, encoder, send))
        except BrokenPipeError:  # nobody is there to hear it
            os._exit(1)
        except (InputError, OSError) as error:
            send(error)
        except Exception:  # a defect: its traceback goes to standard error, and the parent ends
            traceback.print_exc()
            send(
                InputError(
                    f"{job.input.title}: an unexpected error, printed above; please report it"
                )
            )


if __name__ == "__main__":
    main()
