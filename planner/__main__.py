"""The command line of the planner: `python -m planner models | gpus | plan | kv | article | validate | measure-device`.

Answers go to stdout (JSON with --json); an error is one line on stderr and exit code 2.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planner import units
from planner.calibration import Calibration
from planner.catalog.models import CatalogModel, models
from planner.catalog.own import FILE, VARIABLE, Own, own_catalog, present, put
from planner.cost import Billing
from planner.deployment import Deployment
from planner.errors import InputError, Refusal
from planner.fields import meanings, scalars
from planner.gpu import Gpu
from planner.hub import model_from
from planner.kv_layout import kv_report
from planner.measurement import INTERPRETER, measured
from planner.plan import plan
from planner.price import prices
from planner.record import calibration_from, to_json
from planner.report import lines
from planner.units import GIB, finite
from planner.weights import parameters, stage_weights
from planner.workload import Slo, Workload

_KV_DEVICE = "H100-SXM"  # `kv` lays out for this device unless told otherwise: the layout depends on it
_MOST_GIB = 1_000_000  # beyond any device


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 0 when it could be answered, 2 when not."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], None] = options.command
    try:
        command(options)
    except (InputError, Refusal) as error:
        print(f"planner: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
    except OSError as error:
        print(f"planner: {error}", file=sys.stderr)
        return 2
    return 0


class _Parser(argparse.ArgumentParser):
    """Usage errors in one line, like all others."""

    def error(self, message: str) -> Any:
        self.exit(2, f"planner: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m planner", description="Capacity planning for LLM inference on vLLM.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    known = commands.add_parser("models", help="the models known by name")
    known.set_defaults(command=_models)

    devices = commands.add_parser("gpus", help="the devices known by name, with dated prices")
    devices.set_defaults(command=_gpus)

    planned = commands.add_parser("plan", help="memory, speed and cost of one deployment")
    planned.add_argument("model", help="a catalog name, a config.json, its folder, or a Hugging Face id")
    planned.add_argument("--gpu", required=True, help="a device of `gpus`, or cpu")
    for cls in (Deployment, Workload, Slo, Billing):
        _add_fields(planned, cls)
    planned.add_argument("--usd-per-gpu-hour", type=float, metavar="X", help="your own price of one device")
    planned.add_argument("--calibration", type=Path, metavar="FILE", help="what `python -m monitor calibrate` wrote")
    planned.set_defaults(command=_plan)

    layout = commands.add_parser("kv", help="the KV cache layout, as vLLM allocates it")
    layout.add_argument("model", help="a catalog name, a config.json, its folder, or a Hugging Face id")
    layout.add_argument("--gpu", default=_KV_DEVICE, help="a device of `gpus` (default %(default)s)")
    layout.add_argument("--available-kv-gib", type=float, metavar="X", help="memory left for the KV cache, GiB a rank")
    _add_fields(layout, Deployment)
    layout.set_defaults(command=_kv)

    told = commands.add_parser("article", help="an article's figures, reproduced and corrected")
    told.set_defaults(command=_article)

    found = commands.add_parser("measure-device", help="how fast this machine copies and multiplies, by torch")
    found.add_argument("--device", choices=("cpu", "cuda"), help="default: CUDA's where there are any, else the CPU")
    found.add_argument("--write", type=Path, metavar="FILE", help=f"keep it as your own device, in {FILE} or the like")
    found.add_argument("--python", type=Path, default=INTERPRETER, help="one with torch (default: the engine's)")
    found.set_defaults(command=_measure_device)

    checked = commands.add_parser("validate", help="predictions held against published observations")
    kinds = checked.add_subparsers(required=True, metavar="KIND")
    for kind, run in (("kv", _validate_kv), ("memory", _validate_memory), ("serving", _validate_serving)):
        one = kinds.add_parser(kind)
        one.add_argument("file", type=Path, help="JSON lines")
        if kind == "kv":
            one.add_argument("--configs", type=Path, required=True, help="folder with NAME/config.json")
        one.set_defaults(command=run)
        one.add_argument("--json", action="store_true", help="print JSON")

    for command in (devices, planned, layout):
        command.add_argument(
            "--own", type=Path, metavar="FILE",
            help=f"your own devices and prices (default {FILE}, or what {VARIABLE} names)",
        )  # fmt: skip
    for command in (known, devices, planned, layout, told, found):
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _add_fields(parser: argparse.ArgumentParser, cls: type) -> None:
    """One option for each field that holds one value, named like vLLM's flag and explained by the docstring."""
    for name, (kind, default) in scalars(cls).items():
        flag, text = "--" + name.replace("_", "-"), meanings(cls)[name].replace("%", "%%")
        if kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
        else:
            parser.add_argument(flag, type=kind, default=default, metavar=kind.__name__[0].upper(), help=text)


def _made(cls: type, options: argparse.Namespace, **more: object) -> Any:
    return cls(**{name: getattr(options, name) for name in scalars(cls)}, **more)


def _models(options: argparse.Namespace) -> None:
    rows = [_model_row(known) for known in models()]
    _show(options, rows, (f"{row['name']:<34} {row['parameters']:>17,}  {row['architecture']}" for row in rows))


def _model_row(known: CatalogModel) -> dict[str, Any]:
    return {
        "name": known.name,
        "checkpoints": list(known.checkpoints),
        "architecture": known.spec.architecture,
        "parameters": parameters(known.spec).total,
        "source": known.source,
        "date": known.date,
    }


def _gpus(options: argparse.Namespace) -> None:
    own = _own(options)
    rows = [_gpu_row(gpu, own) for gpu in own.devices]
    _show(options, rows, map(_gpu_line, rows))


def _own(options: argparse.Namespace) -> Own:
    return present() if options.own is None else own_catalog(options.own)


def _gpu_row(gpu: Gpu, own: Own) -> dict[str, Any]:
    known = prices(gpu, own.prices)
    return {
        "name": gpu.name,
        "memory_bytes": gpu.memory,
        "memory_bandwidth": gpu.memory_bandwidth,
        "peak_flops": dict(gpu.peak_flops),
        "usd_per_gpu_hour": known and {"low": known.low, "median": known.median, "high": known.high},
        "quotes": [asdict(quote) for quote in known.quotes] if known else [],
        "source": gpu.source,
    }


def _gpu_line(row: dict[str, Any]) -> str:
    price = row["usd_per_gpu_hour"]
    cost = f"${price['low']:.2f} to ${price['high']:.2f} an hour" if price else "no price known"
    size, speed = units.memory(row["memory_bytes"]), units.bandwidth(row["memory_bandwidth"])
    return f"{row['name']:<34} {size:>9}  {speed:>10}  {cost}"


def _plan(options: argparse.Namespace) -> None:
    own = _own(options)
    gpu = own.gpu_named(options.gpu)
    deployment = _made(Deployment, options, gpu=gpu)
    usd = own.usd_per_gpu_hour(gpu) if options.usd_per_gpu_hour is None else options.usd_per_gpu_hour
    load, promised, billing = (_made(cls, options) for cls in (Workload, Slo, Billing))
    measured_here = None if options.calibration is None else _calibration(options.calibration)
    made = plan(model_from(options.model), deployment, load, promised, usd, billing, measured_here)
    _show(options, to_json(made), lines(made))


def _calibration(path: Path) -> Calibration:
    """What `python -m monitor calibrate --write` wrote. Raises InputError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InputError("--calibration", str(path), f"a file of `monitor calibrate --write` ({problem})") from None
    if not isinstance(data, dict):
        raise InputError("--calibration", str(path), "a JSON object of `monitor calibrate --write`")
    return calibration_from(data)


def _kv(options: argparse.Namespace) -> None:
    deployment = _made(Deployment, options, gpu=_own(options).gpu_named(options.gpu))
    model = model_from(options.model)
    available = None if options.available_kv_gib is None else _bytes(options.available_kv_gib)
    report = {
        **kv_report(model, deployment, available),
        "weight_bytes_per_rank": stage_weights(model, deployment)[0].total,
        "total_params": parameters(model).total,
    }
    _show(
        options, report, (f"{key:<26} {value}" for key, value in report.items() if key not in ("groups", "assumptions"))
    )


def _bytes(gib: float) -> int:
    """--available-kv-gib in bytes. Raises InputError for what is no amount of memory."""
    if not 0 <= gib <= _MOST_GIB:
        raise InputError("--available-kv-gib", gib, f"a number of GiB from 0 to {_MOST_GIB:,}")
    return int(gib * GIB)


def _article(options: argparse.Namespace) -> None:
    from planner import article, claim

    rows = [claim.as_json(each, article.SECTIONS[each.section]) for each in article.claims()]
    _show(options, rows, article.lines())


def _measure_device(options: argparse.Namespace) -> None:
    found = measured(options.python, ["--device", options.device] if options.device else [])
    if options.write:
        for device in found:
            put(device.entry, options.write)
    rows = [asdict(device) | {"entry": device.entry} for device in found]
    _show(options, rows, (line for device in found for line in device.lines))


def _validate_kv(options: argparse.Namespace) -> None:
    from planner.validation import read_rows
    from planner.validation.kv import validate

    _show_validation(options, validate(read_rows(options.file), options.configs))


def _validate_memory(options: argparse.Namespace) -> None:
    from planner.validation import read_rows
    from planner.validation.memory import validate

    _show_validation(options, validate(read_rows(options.file)))


def _validate_serving(options: argparse.Namespace) -> None:
    from planner.validation import read_rows
    from planner.validation.serving import validate

    _show_validation(options, validate(read_rows(options.file)))


def _show_validation(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """The whole answer as JSON; for a person its summary, without row by row."""
    short = {key: value for key, value in found.items() if not isinstance(value, list)}
    _show(options, found, json.dumps(short, indent=2).splitlines())


def _show(options: argparse.Namespace, found: object, text: Iterable[str]) -> None:
    if options.json:
        print(json.dumps(finite(found), allow_nan=False))
    else:
        print("\n".join(text))


if __name__ == "__main__":
    sys.exit(main())
