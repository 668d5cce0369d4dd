"""Become another program that the kernel kills when the parent dies: ``launch.py PARENT-PID PROGRAM ARGUMENTS...``.

A program of its own, because in a parent that has threads no Python may run between fork and exec.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Set the death signal, which survives exec, and exec."""
    parent, program, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != int(parent):  # it died before the call above
            sys.exit(1)
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
