"""The command line of the monitor.

python -m monitor snapshot URL [--seconds S] [--json]
python -m monitor read FILE.prom [LATER.prom --seconds S] [--json]
python -m monitor compare PLAN.json URL [--seconds S] [--json]
python -m monitor headroom PLAN.json URL [--seconds 60] [--json]
python -m monitor calibrate PLAN.json URL [--seconds 300] [--name NAME] [--write FILE] [--json]
python -m monitor experiment --model DIR [--kv-cache-dtype auto --kv-cache-dtype fp8] [--repeat 3] [--json]
python -m monitor benchmark PLAN.json RESULT.json [--json]
python -m monitor rules --format prometheus|alertmanager|grafana|scrape [--config FILE]
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import NoReturn

from monitor import reading, report
from monitor.exposition import has_samples
from monitor.scrape import TIMEOUT, engine_version, scrape
from monitor.snapshot import Snapshot
from monitor.window import Window, window
from planner.errors import InputError
from planner.units import finite

_PLAN = "what `python -m planner plan … --json` printed"


class _UnreadableError(Exception):
    """Why there is no page, in one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it could be answered, 2 when not, with one line on stderr."""
    try:
        options = _parser().parse_args(arguments)
        command: Callable[[argparse.Namespace], None] = options.command
        command(options)
    except (_UnreadableError, InputError) as error:
        print(f"monitor: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
    except OSError as error:
        print(f"monitor: {error}", file=sys.stderr)
        return 2
    return 0


class _Parser(argparse.ArgumentParser):
    """Usage errors in one line, like all others."""

    def error(self, message: str) -> NoReturn:
        raise _UnreadableError(message)


def _duration(text: str) -> float:
    """A number of seconds, from a hundredth to a day."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.01 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"found {text}, accepted: seconds from 0.01 to 86400")
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m monitor", description="What a running vLLM server says.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    live = commands.add_parser("snapshot", help="read a server's metrics once, or twice for rates")
    live.add_argument("url", help="http://host:8000, with or without /metrics")
    live.add_argument(
        "--seconds", type=_duration, metavar="S", help="read again after S seconds and show what happened between"
    )
    live.add_argument(
        "--timeout", type=_duration, default=TIMEOUT, metavar="S", help="wait at most S seconds (default %(default)s)"
    )
    live.set_defaults(command=_snapshot)

    files = commands.add_parser("read", help="the same from saved pages")
    files.add_argument("file", type=Path, help="a saved /metrics page")
    files.add_argument("later", type=Path, nargs="?", help="a page of the same server, saved later")
    files.add_argument("--seconds", type=_duration, metavar="S", help="how much later")
    files.set_defaults(command=_read)

    held = commands.add_parser("compare", help="a plan held against a running server")
    _takes_plan_and_server(held, 5.0, "between the two pages rates are taken from (%(default)s)")
    held.set_defaults(command=_compare)

    room = commands.add_parser("headroom", help="how much more traffic a running server takes, as planned")
    _takes_plan_and_server(room, 60.0, "arrivals are counted so long (default %(default)s)")
    room.set_defaults(command=_headroom)

    learnt = commands.add_parser("calibrate", help="a plan's speed as a running server under real traffic has it")
    _takes_plan_and_server(learnt, 300.0, "how long (default %(default)s)")
    learnt.add_argument("--window", type=_duration, default=10.0, metavar="S", help="of each part (%(default)s)")
    learnt.add_argument("--name", default="calibration", help="what it is called (default %(default)s)")
    learnt.add_argument("--write", type=Path, metavar="FILE", help="for `python -m planner plan --calibration FILE`")
    learnt.set_defaults(command=_calibrate)

    tried = commands.add_parser("experiment", help="one model served with several KV dtypes, under the same load")
    tried.add_argument("--model", type=Path, required=True, metavar="DIR", help="config.json, tokenizer and weights")
    tried.add_argument(
        "--kv-cache-dtype", dest="kv_cache_dtypes", action="append", metavar="DTYPE", default=argparse.SUPPRESS,
        help="the first is what others are held against (default: auto, then fp8)",
    )  # fmt: skip
    for flag, kind, meaning in (
        ("--prompts", int, "requests sent at once (default 64)"),
        ("--max-tokens", int, "generated for each (default 512)"),
        ("--max-model-len", int, "longest request accepted (default 8192)"),
        ("--gpu-memory-utilization", float, "share of the GPU (default 0.9); a CPU's pool is 1 GiB unless given"),
        ("--kv-cache-memory-bytes", int, "KV pool given outright, in bytes"),
        ("--repeat", int, "rounds, of one engine start a dtype each (default 3)"),
        ("--port", int, "where the engine listens (default 8111)"),
        ("--python", Path, "the interpreter with vLLM (default: the engine's)"),
    ):
        tried.add_argument(flag, type=kind, metavar="X", help=meaning, default=argparse.SUPPRESS)
    tried.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs; always so on a CPU")
    tried.add_argument("--store", metavar="URL", help="where it is kept (default: monitor.toml's)")
    tried.set_defaults(command=_experiment)

    timed = commands.add_parser("benchmark", help="a load generator's result held against a plan of that load")
    timed.add_argument("plan", type=Path, help=_PLAN)
    timed.add_argument("result", type=Path, help="JSON of `vllm bench serve --save-result`, GuideLLM or AIPerf")
    timed.set_defaults(command=_benchmark)

    rules = commands.add_parser("rules", help="alert rules, scrape targets, receivers and a dashboard for other tools")
    rules.add_argument("--format", required=True, metavar="FORMAT", help="prometheus, alertmanager, grafana or scrape")
    rules.add_argument("--config", type=Path, metavar="FILE", help="monitor.toml (default: the dashboard's own)")
    rules.set_defaults(command=_rules)

    for command in (live, files, held, room, learnt, tried, timed):
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _takes_plan_and_server(command: argparse.ArgumentParser, seconds: float, meaning: str) -> None:
    """What every command asks for that holds a plan against a server for a while."""
    command.add_argument("plan", type=Path, help=_PLAN)
    command.add_argument("url", help="http://host:8000, with or without /metrics")
    command.add_argument("--seconds", type=_duration, default=seconds, metavar="S", help=meaning)
    command.add_argument(
        "--timeout", type=_duration, default=TIMEOUT, metavar="S", help="wait at most S seconds (%(default)s)"
    )


def _snapshot(options: argparse.Namespace) -> None:
    version = engine_version(options.url)
    first = _scraped(options, version)
    if options.seconds is None:
        return _show(options, first)
    time.sleep(options.seconds)
    second = _scraped(options, version)
    return _show(options, second, window(first, second))


def _compare(options: argparse.Namespace) -> None:
    from monitor import deviation
    from monitor.compare import compare
    from planner.record import from_json

    made = from_json(_json(options.plan))
    version = engine_version(options.url)
    first = _scraped(options, version)
    time.sleep(options.seconds)
    spanned = window(first, _scraped(options, version))
    if not spanned.engines:
        raise _UnreadableError(f"{options.url}: no engine to compare: {' '.join(spanned.after.notes) or 'none named'}")
    found = [compare(made, engine, versions=spanned.after.versions) for engine in spanned.engines]
    if options.json:
        print(json.dumps(finite({"engines": [deviation.as_json(each) for each in found]})))
    else:
        print("\n\n".join(deviation.as_text(each) for each in found))


def _headroom(options: argparse.Namespace) -> None:
    from monitor.arrivals import load
    from planner import headroom
    from planner.record import from_json

    made = from_json(_json(options.plan))
    version = engine_version(options.url)
    first = _scraped(options, version)
    time.sleep(options.seconds)
    seen = load(window(first, _scraped(options, version)))
    if seen is None:
        raise _UnreadableError(f"{options.url}: it does not say how many requests ended")
    if seen.workload is not None:
        made = made.on(workload=seen.workload)
    found = headroom.headroom(made, seen.requests_per_s)
    if options.json:
        print(json.dumps(finite({**headroom.as_json(found), "workload": asdict(made.workload)})))
    else:
        print(headroom.as_text(found), f"  for {made.inputs}", sep="\n")


def _experiment(options: argparse.Namespace) -> None:
    from monitor import experiment_result
    from monitor.config import config, config_path
    from monitor.engine import EngineError
    from monitor.experiment import Setup, Step, experiment
    from planner.store import Shelf, StoreError

    def tell(step: Step) -> None:
        if not options.json or sys.stderr.isatty():
            text = f"[{step.number}/{step.of}] {step.text} …"
            print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    given = {name: value for name, value in vars(options).items() if name in Setup.__dataclass_fields__}
    setup = Setup(**given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started is ended
    url = config(config_path()).store if options.store is None else options.store
    try:
        shelf = Shelf(url) if url else None
        if shelf:
            shelf.all(experiment_result.KIND)  # what cannot be kept is known now, and not after the last run
        found = experiment(setup, tell)
        kept = shelf and shelf.put(experiment_result.KIND, found.title, experiment_result.as_json(found))
    except EngineError as error:
        raise _UnreadableError(error.line) from error
    except StoreError as error:
        raise _UnreadableError(str(error)) from error
    except KeyboardInterrupt:
        raise _UnreadableError("interrupted: the engine is ended, nothing is kept") from None
    if options.json:
        print(json.dumps({**experiment_result.as_json(found), "id": kept and kept.id}))
    else:
        print(experiment_result.as_text(found), *([f"Kept as experiment {kept.id}."] if kept else []), sep="\n")


def _benchmark(options: argparse.Namespace) -> None:
    from monitor import benchmark_check, deviation
    from monitor.benchmark_results import measurements
    from planner.record import from_json

    made = from_json(_json(options.plan))
    found = [benchmark_check.check(made, each) for each in measurements(options.result)]
    if options.json:
        answer = [{"context": each.context, **deviation.as_json(each)} for each in found]
        print(json.dumps(finite({"benchmarks": answer})))
    else:
        print("\n\n".join(map(benchmark_check.as_text, found)))


def _rules(options: argparse.Namespace) -> None:
    from monitor import handover
    from monitor.config import config, config_path

    if options.config is not None and not options.config.is_file():
        raise InputError("--config", str(options.config), "a file that exists")
    print(handover.text(options.format, config(options.config or config_path())), end="")


def _calibrate(options: argparse.Namespace) -> None:
    from monitor import calibrate
    from planner.record import from_json

    if options.seconds < calibrate.LEAST_WINDOWS * options.window:
        least = f"at least {calibrate.LEAST_WINDOWS} times --window, {options.window:g}"
        raise InputError("--seconds", options.seconds, least)
    if not options.name.strip():
        raise InputError("--name", options.name, "what the calibration is called")
    if options.write and not options.write.absolute().parent.is_dir():
        raise InputError("--write", str(options.write), "a file in a folder that exists")
    made = from_json(_json(options.plan))
    version = engine_version(options.url)
    pages = [_scraped(options, version)]
    end = time.monotonic() + options.seconds
    while time.monotonic() + options.window <= end:
        time.sleep(options.window)
        pages.append(_scraped(options, version))
    seen = calibrate.steady(calibrate.windows(pages, options.window / 2))
    engine = pages[-1].engines[0] if pages[-1].engines else None
    found, later = calibrate.proven(made, seen, options.name, date.today().isoformat(), engine)
    answer = {"calibration": asdict(found), "later": [asdict(each) for each in later]}
    if options.write:
        options.write.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(finite(answer)) if options.json else calibrate.as_text(found, later))


def _json(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError("plan", str(path), f"a file of `python -m planner plan --json` ({error})") from None
    if not isinstance(found, dict):
        raise InputError("plan", str(path), "a JSON object of `python -m planner plan --json`")
    return found


def _scraped(options: argparse.Namespace, version: str | None) -> Snapshot:
    answer = scrape(options.url, options.timeout)
    if not answer.ok:
        raise _UnreadableError(f"{answer.url}: {answer.message} ({answer.state})")
    return reading.read(answer.text, version=version, at=time.monotonic(), wall=time.time())


def _read(options: argparse.Namespace) -> None:
    if (options.later is None) != (options.seconds is None):
        raise InputError("--seconds", options.seconds, "the time between two files, and only with two files")
    first = _saved(options.file)
    if options.later is None:
        return _show(options, first)
    second = _saved(options.later)
    return _show(options, second, window(first, second, options.seconds))


def _saved(path: Path) -> Snapshot:
    try:
        page = path.read_bytes()
    except OSError as error:
        raise _UnreadableError(f"{path}: {error.strerror}") from error
    # PowerShell saves what a server says as UTF-16.
    text = page.decode("utf-16" if page[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", errors="replace")
    if not has_samples(text):
        raise _UnreadableError(f"{path}: no line of it is a metric")
    return reading.read(text)


def _show(options: argparse.Namespace, found: Snapshot, spanned: Window | None = None) -> None:
    print(json.dumps(finite(report.as_json(found, spanned))) if options.json else report.as_text(found, spanned))


if __name__ == "__main__":
    sys.exit(main())
