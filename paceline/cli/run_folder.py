"""The folder of a running `paceline up`: one log per service, and the lock that says it runs."""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = "up.pid"


def default_run_dir() -> Path:
    """Under the user's state folder (XDG_STATE_HOME)."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "paceline"


class AlreadyRunning(Exception):
    def __init__(self, pid: int) -> None:
        super().__init__(f"already running as process {pid}; end it with: paceline down")


@contextmanager
def lock(run_dir: Path) -> Iterator[None]:
    """Holds the folder for this process. Raises AlreadyRunning.

    The kernel frees the lock of a dead process, so a pid in a stale file is never trusted.
    """
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (run_dir / _LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise AlreadyRunning(int(file.read() or 0)) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def holder(run_dir: Path) -> int | None:
    """The process that holds the folder. None when there is none."""
    try:
        with (run_dir / _LOCK).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0) or None
    except FileNotFoundError:
        pass
    return None


def end_holder(run_dir: Path, timeout_s: float) -> int | None:
    """Sends SIGTERM and waits for the end. None when none runs; raises TimeoutError."""
    pid = holder(run_dir)
    if pid is None:
        return None
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while holder(run_dir) == pid:
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} has not ended after {timeout_s:g} s")
        time.sleep(0.05)
    return pid
