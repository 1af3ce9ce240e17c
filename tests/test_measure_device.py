"""`python -m planner measure-device`: a recorded measurement, what is written of it, and a real one where torch is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import cannot_run

from planner.__main__ import main
from planner.catalog.own import own_catalog, put
from planner.errors import InputError
from planner.gpu import gpu_from
from planner.measurement import INTERPRETER, Measurement, measured, measurements

# Printed by scripts/measure_device.py on a 2-core virtual machine, its runs cut to three and rounded.
RECORDED = json.dumps({
    "name": "cpu", "vendor": "cpu", "memory": 25276510208, "compute_capability": None, "threads": 2,
    "processor": "Intel(R) Xeon(R) Processor, avx512f, avx512_bf16, amx_bf16, amx_tile, amx_int8",
    "copy_bytes_per_s": [10.8e9, 11.25e9, 12.74e9], "read_bytes_per_s": [9.8e9, 13.1e9, 9.2e9],
    "flop_per_s": {"float32": [0.07e12, 0.12e12, 0.08e12], "bfloat16": [0.46e12, 0.2e12, 0.41e12],
                   "int8": [0.43e12, 0.61e12, 0.39e12], "fp8": [4.2e7, 4.3e7, 4.6e7]},
    "torch": "2.13.0+cpu", "date": "2026-11-29",
})  # fmt: skip


@pytest.fixture
def recorded() -> Measurement:
    (only,) = measurements([RECORDED])
    return only


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    """Stands for an interpreter with torch: prints the recorded measurement whatever it is to run."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{RECORDED}\nEND\n")
    script.chmod(0o755)
    return str(script)


def test_medians_are_reached_and_the_best_run_is_the_peak(recorded: Measurement) -> None:
    gpu = gpu_from(recorded.entry)
    assert gpu.is_cpu
    assert gpu.measured_bandwidth == pytest.approx(11.25e9)  # the middle copy
    assert gpu.memory_bandwidth == pytest.approx(13.1e9)  # the best run, a read: no plan may stay below its floor
    assert gpu.measured_flops["bfloat16"] == pytest.approx(0.41e12)
    assert gpu.measured_flops["float32"] == pytest.approx(0.08e12)
    # fp8 is emulated here and gains nothing, float32 is no matrix format of the planner's
    assert gpu.peak_flops == pytest.approx({"bfloat16": 0.46e12, "int8": 0.61e12})
    assert "torch 2.13.0+cpu, read 2026-11-29" in gpu.source


def test_a_known_device_keeps_its_datasheet(recorded: Measurement) -> None:
    """Peaks of an H200 are NVIDIA's; what was measured stands beside them."""
    found = replace(recorded, name="NVIDIA H200", vendor="nvidia", compute_capability="9.0", memory=150_109_880_320)
    gpu = gpu_from(found.entry)
    assert gpu.architecture == "hopper"
    assert gpu.compute_capability == (9, 0)
    assert gpu.memory_bandwidth == 4.8e12
    assert gpu.peak_flops["bfloat16"] == 989e12
    assert gpu.measured_bandwidth == pytest.approx(11.25e9)
    assert gpu.memory == pytest.approx(150_109_880_320, rel=1e-4)


def test_an_unknown_device_is_what_was_measured(recorded: Measurement) -> None:
    found = replace(recorded, name="NVIDIA Quadro Z9", vendor="nvidia", compute_capability="13.0")
    gpu = gpu_from(found.entry)
    assert (gpu.name, gpu.vendor, gpu.architecture) == ("NVIDIA Quadro Z9", "nvidia", "")
    assert gpu.memory_bandwidth == pytest.approx(13.1e9)


def test_before_it_no_speed_and_after_it_a_range(
    interpreter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["plan", "tiny-llama", "--gpu", "cpu", "--concurrency", "4", "--json"]
    assert main(asked) == 0
    assert json.loads(capsys.readouterr().out)["tpot_s"] is None

    assert main(["measure-device", "--python", interpreter, "--write", "planner.toml", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["copies"] == [10.8e9, 11.25e9, 12.74e9]
    assert row["entry"]["measured_gb_s"] == 11.25

    assert main([*asked, "--own", "planner.toml"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert 0 < after["floor_tpot_s"] < after["tpot_s_low"] < after["tpot_s"] < after["tpot_s_high"]
    assert any("unseen device" in line for line in after["assumptions"])


def test_it_is_printed_for_a_person(interpreter: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure-device", "--python", interpreter]) == 0
    printed = capsys.readouterr().out
    assert "2 threads, 23.5 GiB" in printed
    assert "11.2 GB/s     (10.8 to 12.7 in 3 runs)" in printed
    assert "0.41 TFLOP/s  (0.2 to 0.46 in 3 runs)" in printed


def test_measuring_again_replaces_only_that_device(recorded: Measurement, tmp_path: Path) -> None:
    path = tmp_path / "planner.toml"
    ours = '# ours\n[[prices]]\ngpu = "H100-SXM"\nusd_per_gpu_hour = 2.1\n'
    path.write_text(
        '[[gpus]]\nname = "CPU"\nvendor = "cpu"\nmemory_bandwidth_gb_s = 99\npeak_tflops = {bfloat16 = 9}\n' + ours
    )
    put(recorded.entry, path)
    put(recorded.entry, path)
    assert path.read_text().startswith(ours)
    found = own_catalog(path)
    assert [gpu.memory_bandwidth for gpu in found.gpus] == [pytest.approx(13.1e9)]
    assert [price.usd_per_hour for price in found.prices] == [2.1]


def test_a_wrong_file_is_left_alone(recorded: Measurement, tmp_path: Path) -> None:
    path = tmp_path / "planner.toml"
    path.write_text("cpus = 3\n")
    with pytest.raises(InputError, match="cpus"):
        put(recorded.entry, path)
    assert path.read_text() == "cpus = 3\n"


def test_without_an_engine_it_says_how_to_install_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure-device", "--python", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert "make engine" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("line", ["", "no JSON", "[]", '{"name": "cpu"}', RECORDED.replace('"bfloat16"', '"float64"')])
def test_anything_else_is_no_measurement(line: str) -> None:
    with pytest.raises(InputError, match=r"measure_device\.py"):
        list(measurements([line]))


def test_a_real_one() -> None:
    """Tiny sizes: that every quantity is found, not how fast this machine is."""
    if not INTERPRETER.exists():
        cannot_run("no engine: `make engine` installs one")
    (cpu,) = measured(arguments=["--device", "cpu", "--copied", "1000000", "--side", "64", "--runs", "3"])
    assert cpu.name == cpu.vendor == "cpu"
    assert {"float32", "bfloat16"} <= set(cpu.flops)
    assert all(rate > 0 for rates in (cpu.copies, cpu.reads, *cpu.flops.values()) for rate in rates)
    assert gpu_from(cpu.entry).memory_bandwidth > 0
