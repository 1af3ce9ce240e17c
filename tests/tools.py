"""Programs of others that prove what we hand to them."""

import shutil
import subprocess

from tests.conftest import cannot_run


def tool(name: str, *arguments: object) -> str:
    """What the program says; it must say that all is well."""
    if shutil.which(name) is None:
        cannot_run(f"no {name}: install Debian's packages prometheus and prometheus-alertmanager")
    done = subprocess.run([name, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
