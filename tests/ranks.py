"""Ranks as forked children that meet over gloo, for tests and soaks. The parent imports what is
needed and computes nothing.
"""

import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests import PATIENCE


@dataclass
class Rank:
    """A child; `outcome` once it has ended: its value, its error, or the signal that ended it."""

    pid: int
    pipe: int
    outcome: dict[str, Any] | None = None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal, if it still runs."""
        if self.outcome is None:
            os.kill(self.pid, number)


def free_port() -> int:
    """A port that nobody listens at. It lies below those that the system gives to connections, so
    none takes it meanwhile.
    """
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def start(ranks: int, work: Callable[[int], object], ranks_here: int | None = None) -> list[Rank]:
    """Forks the ranks; each calls `work(rank)` in an environment such as torchrun makes."""
    port, children = free_port(), []
    for rank in range(ranks):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            here = ranks_here or ranks
            variables = {
                "RANK": rank,
                "WORLD_SIZE": ranks,
                "LOCAL_RANK": rank % here,
                "LOCAL_WORLD_SIZE": here,
            }
            os.environ |= {key: str(value) for key, value in variables.items()}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            torch.set_num_threads(1)
            os.write(writer, json.dumps(_outcome(work, rank)).encode())
            sys.stdout.flush()
            os._exit(0)
        os.close(writer)
        children.append(Rank(pid, reader))
    return children


def _outcome(work: Callable[[int], object], rank: int) -> dict[str, Any]:
    try:
        return {"value": work(rank)}
    except BaseException as error:
        failure = {"error": type(error).__name__, "message": str(error)}
        return (
            failure
            if isinstance(error, ValueError | RuntimeError | OSError)
            else {**failure, "trace": traceback.format_exc()}
        )


def reap(children: list[Rank]) -> None:
    """Stores the outcome of each rank that has ended."""
    for child in children:
        if child.outcome is None:
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                child.outcome = _read_outcome(child, status)


def wait(children: list[Rank], timeout: float = PATIENCE) -> list[dict[str, Any]]:
    """Waits until all ranks have ended. Returns the outcome of each.
    A rank that runs longer than `timeout` seconds is killed; its outcome is `late`."""
    began = time.monotonic()
    while any(child.outcome is None for child in children):
        reap(children)
        if time.monotonic() - began > timeout:
            for child in children:
                if child.outcome is None:
                    os.kill(child.pid, signal.SIGKILL)
                    os.waitpid(child.pid, 0)
                    os.close(child.pipe)
                    child.outcome = {"late": True}
        time.sleep(0.01)
    return [child.outcome or {} for child in children]


def _read_outcome(child: Rank, status: int) -> dict[str, Any]:
    with os.fdopen(child.pipe) as pipe:
        text = pipe.read()
    return {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else json.loads(text)


def run(
    ranks: int, work: Callable[[int], object], ranks_here: int | None = None
) -> list[dict[str, Any]]:
    """`start` and `wait`."""
    return wait(start(ranks, work, ranks_here))
