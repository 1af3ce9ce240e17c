"""What a dashboard reads from follows monitor.toml, and a file that is wrong changes nothing."""

from pathlib import Path

from monitor.config import MonitorConfig
from monitor.sources import OWN, PROMETHEUS, Sources
from tests.watched import Servers, state

TARGET = '[[targets]]\nname = "chat-1"\nurl = "http://chat-1:8000"\n'
SERVER = '[prometheus]\nurl = "http://prometheus:9090"\n'


def made(path: Path, own: Servers, fleet: Servers) -> Sources:
    return Sources(
        path,
        watch=lambda config: own,  # type: ignore[arg-type, return-value]
        prometheus=lambda config: fleet if config.prometheus else None,
    )


def test_without_a_file_there_is_one_source(tmp_path: Path) -> None:
    own = Servers()
    found = made(tmp_path / "monitor.toml", own, Servers())
    assert found.choices == (OWN,)
    assert found.chosen(None) is own
    assert found.config == MonitorConfig()


def test_prometheus_comes_first_where_nothing_is_scraped_here(tmp_path: Path) -> None:
    path, own, fleet = tmp_path / "monitor.toml", Servers(), Servers(state("pod-1"))
    path.write_text(SERVER)
    found = made(path, own, fleet)
    assert (found.choices, found.chosen(None)) == ((PROMETHEUS, OWN), fleet)
    path.write_text(SERVER + TARGET)
    found = made(path, own, fleet)
    assert (found.choices, found.chosen(None), found.chosen(PROMETHEUS)) == ((OWN, PROMETHEUS), own, fleet)
    assert found.chosen("another") is own


def test_an_address_that_was_typed_is_this_dashboards_own(tmp_path: Path) -> None:
    path, own, fleet = tmp_path / "monitor.toml", Servers(), Servers(state("pod-1"))
    path.write_text(SERVER)
    found = made(path, own, fleet)
    own.watch("http://typed:8000")
    assert found.of("pod-1", None) is fleet
    assert found.of("http://typed:8000", None) is own
    assert found.state("http://typed:8000", None) is own.states["http://typed:8000"]
    assert found.state("nobody", None) is None


def test_a_changed_file_is_taken_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    path, own = tmp_path / "monitor.toml", Servers()
    found = made(path, own, Servers())
    found.reload()
    assert own.heard == []
    path.write_text(TARGET)
    found.reload()
    assert [target.name for target in own.config.targets] == ["chat-1"]
    path.write_text(TARGET + "interval = 'soon'\n")
    found.reload()
    assert "interval" in found.file_problem
    assert [target.name for target in found.config.targets] == ["chat-1"]
    path.write_text(TARGET + SERVER)
    found.reload()
    assert found.file_problem == ""
    assert found.choices == (OWN, PROMETHEUS)
    assert own.heard == ["reload", "reload"]


def test_what_is_usual_is_set_or_learnt(tmp_path: Path) -> None:
    """The throughput rule speaks below 80 % of it."""
    path = tmp_path / "monitor.toml"
    found = made(path, Servers(usual=500.0), Servers())
    assert found.usual("chat-1", 0.0) == (400.0, 500.0)
    path.write_text("[thresholds]\nbaseline_output_tokens_per_s = 1000\n")
    assert made(path, Servers(usual=500.0), Servers()).usual("chat-1", 0.0) == (800.0, 1000.0)
    assert made(tmp_path / "none.toml", Servers(), Servers()).usual("chat-1", 0.0) is None


def test_it_starts_and_stops_with_the_server(tmp_path: Path) -> None:
    own = Servers()
    found = made(tmp_path / "monitor.toml", own, Servers())
    found.start()
    found.stop()
    assert own.heard == ["start", "stop"]
