"""Asks Linux for the AMX tile registers. Python runs this file first in each of the engine's processes.

vLLM's CPU build (0.32) uses the tiles in attention and leaves the asking to oneDNN, which asks at its first large
product of matrices. An engine that skipped its warm-up (eager, pool size given) and whose first prompt is a few tokens
long has not asked by then, and dies of an illegal instruction.
"""

import ctypes
import platform
import sys

SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA = 158, 0x1023, 18  # Linux on x86-64: Documentation/arch/x86/xstate.rst

if sys.platform == "linux" and platform.machine() == "x86_64":
    ctypes.CDLL(None).syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA)  # refused where there are no tiles
