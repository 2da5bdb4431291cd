"""Becomes a command that cannot outlive its parent: python -m paceline.cli.child PID COMMAND...

PR_SET_PDEATHSIG must be set in the child. Doing it in a preexec_fn would run Python between fork
and exec, which can deadlock in a process with threads; so this small program sets it and execs
the command, across which the setting lives on. Only Linux has it: elsewhere a parent killed with
SIGKILL leaves its children running.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    parent, command = int(argv[0]), argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the setting took effect.
        if os.getppid() != parent:
            raise SystemExit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
