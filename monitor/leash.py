"""A process on a leash: it ends, with all it spawned, when whoever holds the leash lets go, even by being killed.

The leash is a pipe. This file, run as a script, sits between: it starts the command in a session of its own and ends
that session's process group when the pipe on its standard input closes, which the kernel does for a killed holder too.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

GRACE = 10.0
"""How long a process that was asked to end may take before it is killed  [s]."""
_TIDYING = 2.0  # what outlives the command may take: Python's tracker removes shared memory then  [s]
_ENDED = 0.1  # how often the command is looked at  [s]


@contextmanager
def leashed(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, output: IO[str], cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command for the length of a `with`, its words written to `output`. Its status is the yielded process's."""
    # Isolated, so that nothing meant for the command (a PYTHONPATH) is loaded here.
    script = [sys.executable, "-I", "-S", __file__, *command]
    process = subprocess.Popen(
        script, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
    )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait()


def _main(command: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    try:
        while child.poll() is None and not select.select([sys.stdin], [], [], _ENDED)[0]:
            pass
        if child.returncode is not None:
            return child.returncode if child.returncode >= 0 else 128 - child.returncode
        return 128 + signal.SIGTERM
    finally:
        if child.poll() is None:
            _send(child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(GRACE)
        deadline = time.monotonic() + _TIDYING
        while _send(child.pid, 0) and time.monotonic() < deadline:
            time.sleep(_ENDED)
        _send(child.pid, signal.SIGKILL)


def _send(group: int, request: int) -> bool:
    """Whether there was anybody to send it to; 0 only asks."""
    try:
        os.killpg(group, request)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
