"""Devices: totals as published out-of-memory messages print them, names as people write them, and a team's own."""

from pathlib import Path

import pytest

from planner.catalog.own import own_catalog
from planner.errors import InputError
from planner.gpu import gpu_from, gpu_named, gpus, plain
from planner.units import GIB

OWN = """
[[gpus]]
name = "RTX 4090 48GB"
memory_gib = 47.4
memory_bandwidth_gb_s = 1008
peak_tflops = { bfloat16 = 165, fp8 = 330 }
compute_capability = "8.9"

[[prices]]
gpu = "rtx-4090-48gb"
usd_per_gpu_hour = 0.5

[[prices]]
gpu = "h100"
usd_per_gpu_hour = 2.1
source = "our contract"
"""


# "GPU 0 has a total capacity of … GiB":
# vllm#27508 (H100), VACE#56 (H100 NVL), RB-Modulation#5 (A30), vllm#23230 (L40S)
@pytest.mark.parametrize(
    ("name", "total"),
    [("H100-SXM", 79.11), ("H100-NVL", 93.00), ("A30", 23.53), ("L40S", 44.40), ("GB200", 184.31), ("MI355X", 287.98)],
)
def test_total_is_what_torch_prints_and_not_the_marketing_size(name: str, total: float) -> None:
    gpu = gpu_named(name)
    assert gpu.memory_low <= (total + 0.005) * GIB
    assert gpu.memory_high >= (total - 0.005) * GIB


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("h100", "H100-SXM"),
        ("H100-sxm", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("A100", "A100-SXM-80GB"),
        ("a100-80gb", "A100-SXM-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"),
        ("RTX4090", "RTX 4090"),
        ("rtx-4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("V100-PCIe-16/32GB", "V100-PCIe-32GB"),
        ("gb200", "GB200 (per GPU)"),
        ("H20-SXM", "H20"),
        ("H20-96GB", "H20"),
        ("H100-PCIe-80GB", "H100-PCIe"),
        ("B200-180GB", "B200"),
        ("CPU", "cpu"),
    ],
)
def test_names_as_people_write_them(written: str, name: str) -> None:
    assert gpu_named(written).name == name


def test_an_unknown_name_lists_near_ones() -> None:
    with pytest.raises(InputError, match=r"gpu: found 'h10'.*H100-SXM"):
        gpu_named("h10")


def test_names_and_aliases_are_one_device_each() -> None:
    names = [name for gpu in gpus() for name in {plain(name) for name in (gpu.name, *gpu.aliases)}]
    assert len(names) == len(set(names))


def test_every_device_is_whole_and_sourced() -> None:
    assert len(gpus()) >= 46
    for gpu in gpus():
        assert 0 < gpu.memory_low <= gpu.memory <= gpu.memory_high
        assert gpu.source
        assert all(gpu.measured_flops[dtype] <= gpu.peak_flops[dtype] for dtype in gpu.measured_flops)
        if gpu.is_cpu:  # whichever it is: unknown until measured, never made up
            assert (gpu.memory_bandwidth, gpu.peak_flops) == (0, {})
            continue
        assert 10 < gpu.peak_flops["bfloat16"] / gpu.memory_bandwidth < 1000  # the ridge point of any real device


def test_the_cpu_is_this_machine() -> None:
    assert gpu_named("cpu").is_cpu
    assert not gpu_named("H100").is_cpu


def test_own_devices_and_prices(tmp_path: Path) -> None:
    path = tmp_path / "planner.toml"
    path.write_text(OWN)
    own = own_catalog(path)
    gpu = gpu_named("RTX 4090 48GB", own.gpus)
    assert (gpu.memory, gpu.compute_capability, gpu.peak_flops["fp8"]) == (int(47.4 * GIB), (8, 9), 330e12)
    assert [(price.gpu, price.usd_per_hour) for price in own.prices] == [("RTX 4090 48GB", 0.5), ("H100-SXM", 2.1)]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("x = 1", "x"),
        ("[[gpus]]\nname = 3", "gpus.name"),
        ("[[gpus]]\nname = 'X'", r"gpus\[X\].memory_gib"),
        ("[[gpus]]\nname = 'X'\nmemory_gib = -1", r"gpus\[X\].memory_gib"),
        ("[[gpus]]\nname = 'X'\nmemory_gib = 8\npeak_tflops = {fp8 = 1}", r"gpus\[X\].peak_tflops"),
        ("[[gpus]]\nname = 'X'\nmemory_gib = 8\npeak_tflops = {bfloat16 = 1}", r"gpus\[X\].memory_bandwidth_gb_s"),
        ("[[gpus]]\nname = 'X'\nspeed = 8", r"gpus\[X\].speed"),
        ("[[prices]]\ngpu = 'H100'", r"prices\[H100-SXM\].usd_per_gpu_hour"),
        ("[[prices]]\ngpu = 'unheard-of'", "gpu: found"),
        ("prices = 3", "prices"),
        ("[[", "TOML"),
    ],
)
def test_a_malformed_file_names_the_key(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "planner.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=key):
        own_catalog(path)


def test_units_become_base_units() -> None:
    gpu = gpu_from(
        {"name": "X", "memory_gib": 2, "memory_bandwidth_gb_s": 1, "peak_tflops": {"bfloat16": 1}, "link_gb_s": 3}
    )
    assert (gpu.memory, gpu.memory_bandwidth, gpu.peak_flops["bfloat16"], gpu.link_bandwidth) == (
        2 * GIB,
        1e9,
        1e12,
        3e9,
    )
