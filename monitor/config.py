"""MonitorConfig: what monitor.toml says. Which servers are watched, where from, how they are judged, who is told.

The file is `monitor.toml` in the working directory, or what KV_MONITOR_CONFIG names. Every key is optional but a name
and a url; ${NAME} stands for an environment variable and is looked up when it is used.

interval = 5
store = "sqlite:///monitor.db"
editors = ["ann@example.org"]

[[targets]]
name = "chat-1"
url = "https://gpu1:8000"
group = "chat"
labels = { region = "eu" }
headers = { Authorization = "Bearer ${VLLM_TOKEN}" }

[thresholds]
usage_act = 0.85

[[webhooks]]
name = "on call"
url = "${SLACK_WEBHOOK}"
format = "slack"
"""

import os
import re
import threading
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT

from monitor.scrape import metrics_url
from monitor.targets import Target, without_user
from monitor.thresholds import Thresholds
from planner.errors import LARGEST, InputError

VARIABLE, FILE = "KV_MONITOR_CONFIG", "monitor.toml"
FORMATS = ("generic", "slack")
_SHARES = (
    "usage_act", "usage_alarm", "full_usage", "fragmentation", "fragmentation_usage", "retention", "prefix_hit_rate",
    "throughput", "errors", "http_errors", "band",
)  # fmt: skip
_LEAST = {"interval": 1.0, "timeout": 0.1, "window": 1.0, "full_trend": 10.0, "jitter": 1.0}
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OWN_LABELS = ("job", "instance", "name", "group", "engine", "model_name")  # what scraping sets by itself
_MATCHERS = re.compile(r'\w+\s*(?:=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"(?:\s*,\s*(?=\w)|$)')
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusServer:
    """A Prometheus-compatible server that scrapes the fleet already. ${NAME} stands for an environment variable.

    url       its base address; the API is below it at /api/v1
    selector  which series are the fleet's, as PromQL writes it between braces: job="vllm"
    bearer    token, or empty
    username  for basic authentication, or empty
    password  for basic authentication
    tenant    X-Scope-OrgID of Mimir, Cortex or Loki-style gateways, or empty
    headers   sent with each request
    ca_file   certificates to trust instead of the system's
    verify    whether the certificate is checked at all
    timeout   a query may take this long  [s]
    """

    url: str
    selector: str = ""
    bearer: str = ""
    username: str = ""
    password: str = ""
    tenant: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: str = ""
    verify: bool = True
    timeout: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Who is told when a finding begins or ends. ${NAME} stands for an environment variable.

    name    what pages call it
    url     where the JSON is posted
    format  slack (also Mattermost and others that take {"text": …}) or generic (all fields of the event)
    groups  only events of these groups; empty is all
    """

    name: str
    url: str
    format: str = "generic"
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorConfig:
    """All of monitor.toml, with its defaults.

    targets     servers scraped by this dashboard
    thresholds  when a rule speaks
    interval    between two pages of a target                         [s]
    timeout     a scrape may take this long                           [s]
    store       SQLAlchemy URL of what is recorded; empty records nothing
    editors     who may edit on the page, by e-mail address; empty is everybody where the file can be written
    prometheus  where the fleet is read from instead of scraping it
    webhooks    who is told
    """

    targets: tuple[Target, ...] = ()
    thresholds: Thresholds = Thresholds()
    interval: float = 5.0
    timeout: float = 10.0
    store: str = "sqlite:///monitor.db"
    editors: tuple[str, ...] = ()
    prometheus: PrometheusServer | None = None
    webhooks: tuple[Webhook, ...] = ()


def config_path() -> Path:
    """The file that the dashboard reads: KV_MONITOR_CONFIG, or monitor.toml in the working directory."""
    return Path(os.environ.get(VARIABLE) or FILE)


def config(path: str | Path) -> MonitorConfig:
    """What the file says, read again when it changes; the defaults where there is none.

    Raises InputError that names the file, the key in it, and what is accepted there.
    """
    path = Path(path)
    try:
        state = path.stat()
    except FileNotFoundError:
        return MonitorConfig()
    except OSError as problem:
        raise InputError(str(path), str(problem), "a readable TOML file") from problem
    return _read(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> MonitorConfig:
    """The file, once for each state of it."""
    return _from_text(_text(path), path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(str(path), str(problem), "a readable TOML file") from problem


def _from_text(text: str, path: Path) -> MonitorConfig:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise InputError(str(path), str(problem), "a readable TOML file") from problem
    hints = get_type_hints(MonitorConfig)
    found: dict[str, Any] = {}
    for key, value in document.items():
        where = f"{path}: {key}"
        match key:
            case "targets":
                found[key] = _all_named(Target, value, where)
            case "webhooks":
                found[key] = _all_named(Webhook, value, where)
            case "thresholds":
                found[key] = _checked_thresholds(_made(Thresholds, value, where), where)
            case "prometheus":
                found[key] = _made(PrometheusServer, value, where)
            case _ if key in hints:
                found[key] = _value(hints[key], key, value, where)
            case _:
                raise InputError(where, value, ", ".join(hints))
    return MonitorConfig(**found)


def _all_named(kind: Any, value: object, where: str) -> tuple[Any, ...]:
    """The tables of [[targets]] or [[webhooks]], each name once."""
    if not isinstance(value, list):
        raise InputError(where, value, f"[[{where.rpartition(' ')[2]}]] tables")
    made = tuple(_made(kind, table, f"{where}[{number}]") for number, table in enumerate(value, start=1))
    names = [one.name for one in made]
    for number, name in enumerate(names, start=1):
        if name in names[: number - 1]:
            raise InputError(f"{where}[{number}].name", name, "each name once")
    return made


def _made(kind: Any, table: object, where: str) -> Any:
    """One table as its type."""
    if not isinstance(table, Mapping):
        raise InputError(where, table, "a table")
    hints = get_type_hints(kind)
    for key, value in table.items():
        if key not in hints:
            raise InputError(f"{where}.{key}", value, ", ".join(hints))
    for one in fields(kind):
        if one.default is MISSING and one.default_factory is MISSING and one.name not in table:
            raise InputError(f"{where}.{one.name}", "nothing", "an address" if one.name == "url" else "a name")
    return kind(**{key: _value(hints[key], key, value, f"{where}.{key}") for key, value in table.items()})


def _value(hint: Any, key: str, value: Any, where: str) -> Any:
    """One value, checked by the type of its field and by its key."""
    if hint is bool:
        return _accepted(isinstance(value, bool), value, where, "true or false")
    if hint is int:
        is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST
        return _accepted(is_whole, value, where, f"an integer from 0 to {LARGEST:,}")
    if hint in (float, float | None):
        least, most = _LEAST.get(key, 0.0), 1.0 if key in _SHARES else float(LARGEST)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if hint is not float:
            is_right = is_number and 0 < value <= most
            return float(_accepted(is_right, value, where, f"a number above 0, at most {most:g}, or none"))
        return float(
            _accepted(is_number and least <= value <= most, value, where, f"a number from {least:g} to {most:g}")
        )
    if hint == tuple[str, ...]:
        are_texts = isinstance(value, list) and all(isinstance(one, str) and one for one in value)
        return tuple(_accepted(are_texts, value, where, "a list of texts"))
    if hint == Mapping[str, str]:
        are_texts = isinstance(value, Mapping) and all(isinstance(one, str) for one in value.values())
        table = _accepted(are_texts, value, where, "a table of texts")
        return _headers(table, where) if key == "headers" else _labels(table, where)
    text = _accepted(isinstance(value, str), value, where, "a text")
    if key == "url":
        return _url(text, where)
    if key == "name":
        return _accepted(bool(text.strip()) and text.isprintable(), text, where, "a name on one line")
    if key == "selector" and text:
        return _accepted(not _MATCHERS.sub("", text).strip(), text, where, 'matchers as PromQL has them: job="vllm"')
    if key == "format":
        return _accepted(text in FORMATS, text, where, " or ".join(FORMATS))
    return text


def _accepted(is_right: bool, value: Any, where: str, accepted: str) -> Any:
    if not is_right:
        raise InputError(where, value, accepted)
    return value


def _url(text: str, where: str) -> str:
    """An address; one with a variable is known only when it is used."""
    if "${" not in text:
        try:
            metrics_url(text)
        except InputError as problem:
            raise InputError(where, text, problem.accepted) from None
    return text


def _headers(table: Mapping[str, str], where: str) -> Mapping[str, str]:
    for name, value in table.items():
        if not _HEADER.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise InputError(where, name, "header names, each with a value of printable ASCII characters")
    return table


def _labels(table: Mapping[str, str], where: str) -> Mapping[str, str]:
    for name in table:
        if not _LABEL.fullmatch(name) or name in _OWN_LABELS:
            raise InputError(where, name, f"letters, digits and _, and none of {', '.join(_OWN_LABELS)}")
    return table


def _checked_thresholds(thresholds: Thresholds, where: str) -> Thresholds:
    if thresholds.usage_act > thresholds.usage_alarm:
        raise InputError(f"{where}.usage_act", thresholds.usage_act, f"at most usage_alarm, {thresholds.usage_alarm:g}")
    return thresholds


# Edits. They keep the file's comments and order.

_editing = threading.Lock()


def can_edit(path: Path, config: MonitorConfig, email: str | None) -> bool:
    """Whether this visitor may edit the file, and this process can: make it read-only where nobody should."""
    is_allowed = not config.editors or (email or "").casefold() in {editor.casefold() for editor in config.editors}
    places = [path.resolve().parent, *([path] if path.exists() else [])]
    return is_allowed and all(os.access(place, os.W_OK) for place in places)


def put_target(path: Path, target: Target) -> None:
    """Writes a target into the file, in the place of the one of that name.

    Raises InputError, and changes nothing, where the file is wrong or would be; so do the other two.
    """

    def put(document: Any) -> None:
        tables = document.setdefault("targets", tomlkit.aot())
        table = next((table for table in tables if table["name"] == target.name), None)
        if table is None:
            empty = tomlkit.table() if isinstance(tables, AoT) else tomlkit.inline_table()
            tables.append(_filled(empty, target))
        else:
            _filled(table, target)

    _edit(path, put, lambda before: replace(before, targets=_with(before.targets, target)))


def remove_target(path: Path, name: str) -> None:
    """Takes a target out of the file; one that is not there is no error."""

    def remove(document: Any) -> None:
        tables = document.get("targets", [])
        for number in reversed(range(len(tables))):
            if tables[number]["name"] == name:
                del tables[number]

    def without(before: MonitorConfig) -> MonitorConfig:
        return replace(before, targets=tuple(one for one in before.targets if one.name != name))

    _edit(path, remove, without)


def put_thresholds(path: Path, thresholds: Thresholds) -> None:
    """Writes those thresholds that are not the defaults."""

    def put(document: Any) -> None:
        _filled(document.setdefault("thresholds", tomlkit.table()), thresholds)

    _edit(path, put, lambda before: replace(before, thresholds=thresholds))


def _with(targets: tuple[Target, ...], target: Target) -> tuple[Target, ...]:
    if target.name not in [one.name for one in targets]:
        return (*targets, target)
    return tuple(target if one.name == target.name else one for one in targets)


def _filled(table: Any, one: Target | Thresholds) -> Any:
    """The table with what differs from the defaults; what is as it was is not touched, nor is its comment."""
    for item in fields(one):
        value = getattr(one, item.name)
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if value == table.get(item.name):
            continue
        if value == default:
            table.pop(item.name, None)
        else:
            table[item.name] = _inline(value) if isinstance(value, Mapping) else value
    return table


def _inline(values: Mapping[str, str]) -> Any:
    table = tomlkit.inline_table()
    table.update(values)
    return table


def _edit(path: Path, change: Callable[[Any], None], expected: Callable[[MonitorConfig], MonitorConfig]) -> None:
    """The file changed, if what it then says is what was meant; in one step, so that nobody reads half of it."""
    path = path.resolve()
    with _editing:
        before = _text(path)
        wanted = expected(_from_text(before, path))
        try:
            document = tomlkit.parse(f"{before}\n" if before and not before.endswith("\n") else before)
            change(document)
            after = tomlkit.dumps(document)
        except TOMLKitError as problem:
            raise InputError(str(path), str(problem), "a file that can be edited here") from problem
        if _from_text(after, path) != wanted:
            raise InputError(str(path), "a layout that this page cannot edit", "an edit by hand")
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_text(after, encoding="utf-8")
            if path.exists():
                temporary.chmod(path.stat().st_mode)
            temporary.replace(path)
        except OSError as problem:
            temporary.unlink(missing_ok=True)
            raise InputError(str(path), str(problem), "a file that can be written") from problem


HIDDEN = "(hidden)"


def without_secrets(config: MonitorConfig) -> MonitorConfig:
    """The same to be shown to anybody: what stands in the file itself where a ${NAME} could, is hidden.

    >>> without_secrets(MonitorConfig(webhooks=(Webhook(name="on call", url="https://hooks.example/s3cret"),))).webhooks
    (Webhook(name='on call', url='https://hooks.example/(hidden)', format='generic', groups=()),)
    """
    targets = tuple(replace(each, url=each.shown_url, headers=_hidden(each.headers)) for each in config.targets)
    webhooks = tuple(replace(each, url=_only_host(each.url)) for each in config.webhooks)
    return replace(config, targets=targets, webhooks=webhooks)


def _hidden(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value if "${" in value else HIDDEN for name, value in headers.items()}


def _only_host(url: str) -> str:
    """A webhook's address without its path, which often is the secret."""
    return url if "${" in url else re.sub(r"^(\w+://[^/]*)/.+", rf"\1/{HIDDEN}", without_user(url))
