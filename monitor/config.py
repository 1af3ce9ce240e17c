"""MonitorConfig: what monitor.toml says. Which servers are watched, where from, how they are judged, who is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.targets import Target
from monitor.thresholds import Thresholds


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
