"""monitor/engine.py where the engine misbehaves: shell scripts stand in for it, since a real one fails slowly."""

import time
from pathlib import Path

import pytest

from monitor.engine import Engine, EngineError, serving


def stand_in(folder: Path, script: str) -> Engine:
    """An engine whose interpreter is this shell script, on a port where nobody listens."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return Engine(model=folder, port=9, python=python)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended but was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends(pid: int) -> bool:
    """Whether the process is gone within 5 s: a killed one still takes a moment."""
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


def test_an_engine_that_ends_leaves_its_last_words(tmp_path: Path) -> None:
    engine = stand_in(tmp_path, "seq 100; echo no such model >&2; exit 3")
    with pytest.raises(EngineError, match=r"status 3 before it served:\n82\n(.*\n)+no such model\n$"), serving(engine):
        pass


def test_a_silent_engine_is_ended_with_all_it_spawned(tmp_path: Path) -> None:
    deaf = f"(trap '' TERM; exec sleep 600) & echo $! > {tmp_path}/child; wait"
    with pytest.raises(EngineError, match="did not serve"), serving(stand_in(tmp_path, deaf), patience=0.5):
        pass
    assert ends(int((tmp_path / "child").read_text()))


def test_the_engine_ends_when_its_user_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.engine._await", lambda *_: time.sleep(0.5))

    def use(engine: Engine) -> None:
        with serving(engine) as url:
            assert url == "http://127.0.0.1:9"
            assert is_alive(int((tmp_path / "leader").read_text()))
            raise LookupError

    with pytest.raises(LookupError):
        use(stand_in(tmp_path, f"echo $$ > {tmp_path}/leader; exec sleep 600"))
    assert ends(int((tmp_path / "leader").read_text()))
