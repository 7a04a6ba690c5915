"""The few steps between a fork and the program: change the user, tie the leash, become the program.

Run as a file: `python -I -S leash.py PARENT SIGNAL UID PROGRAM [ARGUMENT ...]`. It is a program of its own because code
between fork and exec is unsafe in a process with threads. The leash (PR_SET_PDEATHSIG) comes after the change of user,
which would clear it; a parent that ended before it was tied is noticed by the number of the present one.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, death_signal: int, uid: int, argv: list[str]) -> None:
    if uid != os.geteuid():
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        sys.exit("the kernel did not take the leash (PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the parent ended before the program started")
    os.execvp(argv[0], argv)  # noqa: S606 (to start a program without a shell is the purpose)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
