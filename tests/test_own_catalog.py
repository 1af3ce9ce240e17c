"""A team's own devices and prices: where the file is found, what wins over what, and how the file is added to."""

import json
from pathlib import Path

import pytest

from planner.__main__ import main
from planner.catalog.own import Own, as_toml, can_save, checked, own_path, present, save
from planner.catalog.uploads import Uploads
from planner.errors import InputError
from planner.gpu import gpu_named, gpus
from planner.hub import model_from
from planner.units import GIB

DEVICE = {
    "name": 'Lab "A" 48GB',
    "memory_gib": 47.4,
    "memory_bandwidth_gb_s": 1008,
    "peak_tflops": {"bfloat16": 165, "fp8": None},
    "compute_capability": "8.9",
    "source": "",
}
PRICE = {"gpu": "h100", "usd_per_gpu_hour": 2.1, "source": "our contract"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with no file of the team's own in it or named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KV_PLANNER_OWN", raising=False)
    return tmp_path


def test_without_a_file_there_is_the_catalog(folder: Path) -> None:
    assert present() == Own()
    assert present().devices == gpus()
    assert present().usd_per_gpu_hour(gpu_named("H100")) is None


def test_the_file_in_the_working_directory_is_read_again_when_it_changes(folder: Path) -> None:
    path = folder / "planner.toml"
    save(as_toml("prices", PRICE), path)
    assert present().usd_per_gpu_hour(gpu_named("H100")) == 2.1
    save(as_toml("gpus", DEVICE), path)
    assert present().devices[0].name == DEVICE["name"]
    assert len(present().devices) == len(gpus()) + 1


def test_the_variable_names_another_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "team.toml").write_text(as_toml("gpus", DEVICE))
    monkeypatch.setenv("KV_PLANNER_OWN", "team.toml")
    assert present().gpu_named('lab "a" 48gb').memory == int(47.4 * GIB)
    monkeypatch.setenv("KV_PLANNER_OWN", "gone.toml")
    with pytest.raises(InputError, match="KV_PLANNER_OWN"):
        present()
    assert own_path() == Path("gone.toml")


def test_what_is_written_is_what_is_read(folder: Path) -> None:
    own = checked(as_toml("gpus", DEVICE) + as_toml("prices", PRICE), folder / "planner.toml")
    assert own.gpus[0].peak_flops == {"bfloat16": 165e12}
    assert (own.prices[0].gpu, own.prices[0].usd_per_hour, own.prices[0].source) == ("H100-SXM", 2.1, "our contract")
    assert not (folder / "planner.toml").exists()


def test_an_own_device_replaces_one_of_the_catalog(folder: Path) -> None:
    own = checked(as_toml("gpus", DEVICE | {"name": "H100 SXM"}), folder / "planner.toml")
    assert len(own.devices) == len(gpus())
    assert own.gpu_named("h100-sxm").memory == int(47.4 * GIB)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (as_toml("gpus", DEVICE), "gpus.name"),  # once already
        (as_toml("gpus", {"name": "X"}), r"gpus\[X\].memory_gib"),
        (as_toml("prices", {"gpu": "H100"}), r"prices\[H100-SXM\].usd_per_gpu_hour"),
        ("[[", "planner.toml"),
    ],
)
def test_what_would_be_wrong_is_not_saved(folder: Path, text: str, key: str) -> None:
    path = folder / "planner.toml"
    save(as_toml("gpus", DEVICE), path)
    before = path.read_text()
    with pytest.raises(InputError, match=key):
        save(text, path)
    assert path.read_text() == before


def test_a_file_that_cannot_be_written_is_said_to_be(folder: Path) -> None:
    path = folder / "missing" / "planner.toml"
    assert not can_save(path)
    with pytest.raises(InputError, match="can be written"):
        save(as_toml("prices", PRICE), path)


def usd_per_hour(capsys: pytest.CaptureFixture[str], *more: str) -> float:
    assert main(["plan", "llama-3-8b", "--gpu", "h100", "--json", *more]) == 0
    return float(json.loads(capsys.readouterr().out)["usd_per_hour"])


def test_command_line_price_over_file_over_quotes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quoted = usd_per_hour(capsys)
    (folder / "team.toml").write_text(as_toml("prices", PRICE))
    assert quoted != 2.1
    assert usd_per_hour(capsys, "--own", "team.toml") == 2.1
    assert usd_per_hour(capsys, "--own", "team.toml", "--usd-per-gpu-hour", "9") == 9
    (folder / "team.toml").rename(folder / "planner.toml")
    assert usd_per_hour(capsys) == 2.1


def test_command_line_knows_own_devices(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "planner.toml").write_text(as_toml("gpus", DEVICE))
    assert main(["gpus", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == DEVICE["name"]
    assert main(["kv", "llama-3-8b", "--gpu", 'lab "a" 48gb', "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes_per_token"] == 32 * 2 * 8 * 128 * 2
    (folder / "planner.toml").write_text("cpus = 3")
    assert main(["gpus"]) == 2
    assert "planner.toml: cpus" in capsys.readouterr().err


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 128,
}


def config(**changes: object) -> bytes:
    return json.dumps(LLAMA | changes).encode()


def test_an_upload_is_known_by_its_content() -> None:
    uploads = Uploads(model_from)
    one, two = uploads.keep("Mine.json", config()), uploads.keep("Mine.json", config(num_hidden_layers=3))
    assert one.startswith("upload/mine-")
    assert one != two
    assert uploads.keep("Mine.json", config()) == one
    assert uploads.references() == (two, one)
    assert (uploads.named(two).num_hidden_layers, uploads.named(two).name) == (3, two)


def test_the_oldest_upload_goes_and_says_so() -> None:
    uploads = Uploads(model_from, kept=1)
    first = uploads.keep("a.json", config())
    uploads.keep("b.json", config())
    with pytest.raises(InputError, match=r"upload its config\.json again"):
        uploads.named(first)


def test_what_is_no_config_is_not_kept() -> None:
    uploads = Uploads(model_from)
    with pytest.raises(InputError, match="JSON"):
        uploads.keep("a.json", b"no")
    assert uploads.references() == ()
