"""Where a model's config.json comes from: the catalog, a folder or file, an upload, the Hugging Face hub.

A reference is resolved in this order, the first that fits wins:
1. bytes are an uploaded config.json;
2. a name or Hugging Face id of the catalog (no disk, no network);
3. a config.json, or a folder with one, on this machine; write `./name` where the catalog has the same name;
4. `owner/name` is asked of the hub; a name without an owner is not.
The catalog knows an id without asking; `from_hub` asks for what the hub has now.
"""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.catalog.models import knows, model_named, published_parameters
from planner.errors import InputError
from planner.families import model_spec, read_config
from planner.model import ModelSpec

_HUB = "https://huggingface.co"
_MODELOPT = "hf_quant_config.json"  # where ModelOpt before 0.31 wrote what it quantised
_LARGEST_UPLOAD = 4 * 2**20  # bytes; the longest published config.json, with its quantisation lists, is below 1 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A model and where it was found.

    spec                  what its config.json says
    origin                catalog, file, upload or hub
    published_parameters  what the safetensors headers count, None where nothing says  [parameters]
    """

    spec: ModelSpec
    origin: str
    published_parameters: int | None = None


class HubError(InputError):
    """The hub gave no config.json for this id.

    kind  missing, private, gated, no_config, refused, failed, offline or timeout
    """

    def __init__(self, repo_id: str, kind: str, reason: str) -> None:
        super().__init__("model", repo_id, reason)
        self.kind = kind
        self.args = (f"{repo_id}: {reason}",)


def model_from(reference: str | Path | bytes, **hub: Any) -> ModelSpec:
    """The ModelSpec that a reference stands for; `hub` holds the options of `from_hub`. Raises InputError.

    >>> model_from("llama-3-8b").name
    'meta-llama/Meta-Llama-3-8B'
    """
    return find_model(reference, **hub).spec


def find_model(reference: str | Path | bytes, **hub: Any) -> FoundModel:
    """The model that a reference stands for, and where it was found, in the order of this module's head."""
    if isinstance(reference, bytes):
        return FoundModel(spec=_uploaded(reference), origin="upload")
    name = str(reference).strip()
    if isinstance(reference, str) and knows(name):
        return FoundModel(spec=model_named(name), origin="catalog", published_parameters=published_parameters(name))
    path = Path(name).expanduser()
    if path.exists() or isinstance(reference, Path) or name.startswith((".", "/", "~")) or name.endswith(".json"):
        folder = path.parent if path.name == "config.json" else path
        return FoundModel(spec=model_spec(read_config(path), str(folder)), origin="file")
    if name.count("/") != 1:
        return FoundModel(spec=model_named(name), origin="catalog")  # raises, with the nearest names
    return from_hub(name, **hub)


def from_hub(
    repo_id: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    timeout: float = 10.0,
    cache_dir: str | Path | None = None,
) -> FoundModel:
    """What the hub has under `owner/name`, within `timeout` seconds in all, kept in the client's own cache.

    endpoint and token default to HF_ENDPOINT and HF_TOKEN (or the saved login). The cache answers when the hub does
    not. Raises HubError, whose `kind` says which of its reasons it was.
    """
    endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")
    try:
        return _within(timeout, lambda: _downloaded(repo_id, revision, token, endpoint, timeout, cache_dir))
    except TimeoutError:
        raise HubError(repo_id, "timeout", f"{endpoint} did not answer within {timeout:g} s; try again") from None


def _downloaded(
    repo_id: str, revision: str | None, token: str | None, endpoint: str, timeout: float, cache_dir: str | Path | None
) -> FoundModel:
    from huggingface_hub import HfApi, ModelInfo, hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    # The card is asked for first: the client retries downloads for half a minute, but not this.
    card: ModelInfo | None = None
    silence: Exception | None = None
    try:
        card = HfApi(endpoint=endpoint, token=token).model_info(
            repo_id, revision=revision, expand=["safetensors", "siblings"], timeout=timeout / 2
        )
    except HFValidationError as error:
        raise InputError("model", repo_id, "a Hugging Face id, owner/name") from error
    except HfHubHTTPError as error:
        if isinstance(error, RepositoryNotFoundError) or error.response.status_code == 429:
            raise _refusal(repo_id, endpoint, token, error) from None
        # else a mirror without cards: config.json may still be there
    except (HTTPError, OSError) as error:
        silence = error

    def file(filename: str) -> Path:
        return Path(
            hf_hub_download(
                repo_id,
                filename,
                revision=revision,
                token=token,
                endpoint=endpoint,
                etag_timeout=timeout / 2,
                cache_dir=cache_dir,
                local_files_only=silence is not None,
            )
        )

    try:
        path = file("config.json")
        config = read_config(path)
        names = {sibling.rfilename for sibling in (card and card.siblings) or ()}
        if _MODELOPT in names and not config.get("quantization_config"):
            file(_MODELOPT)
            config = read_config(path)  # it looks beside config.json
    except LocalEntryNotFoundError:
        kind = "timeout" if "Timeout" in type(silence).__name__ else "offline"
        raise HubError(repo_id, kind, f"no answer from {endpoint}, and no earlier copy in the cache") from None
    except EntryNotFoundError:
        raise HubError(repo_id, "no_config", "the repository has no config.json, so no model to plan for") from None
    except HfHubHTTPError as error:
        raise _refusal(repo_id, endpoint, token, error) from None
    parameters = card.safetensors.total if card and card.safetensors else None
    return FoundModel(spec=model_spec(config, repo_id), origin="hub", published_parameters=parameters)


def _refusal(repo_id: str, endpoint: str, token: str | None, error: Any) -> HubError:
    """Which refusal an HTTP error of the client is, with what to do about it."""
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    status = error.response.status_code
    if isinstance(error, GatedRepoError):
        return HubError(repo_id, "gated", f"gated: accept its terms at {endpoint}/{repo_id}, then set HF_TOKEN")
    if isinstance(error, RevisionNotFoundError):
        return HubError(repo_id, "missing", "the repository has no such revision")
    if status == 401:
        given = "this token may not read it" if token else "set HF_TOKEN if you may read it"
        return HubError(repo_id, "private", f"private, or not there: {given}")
    if status == 404:
        return HubError(repo_id, "missing", f"{endpoint} has no such repository; check the spelling")
    if status in (403, 429):
        why = "too many requests: wait, or set HF_TOKEN" if status == 429 else "this token may not read it"
        return HubError(repo_id, "refused", f"{endpoint} refused ({status}): {why}")
    return HubError(repo_id, "failed", f"{endpoint} failed ({status}); try again later")


def _within(seconds: float, call: Callable[[], FoundModel]) -> FoundModel:
    """What `call` returns or raises, or TimeoutError; the client's own time limits are for each request and retry."""
    outcome: list[FoundModel | BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    worker = threading.Thread(target=run, name="hub", daemon=True)
    worker.start()
    worker.join(seconds)
    if not outcome:
        raise TimeoutError
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _uploaded(content: bytes) -> ModelSpec:
    if len(content) > _LARGEST_UPLOAD:
        raise InputError("config.json", f"{len(content):,} bytes", f"a JSON file below {_LARGEST_UPLOAD:,} bytes")
    try:
        config = json.loads(content.decode("utf-8-sig"))
    except ValueError as error:
        raise InputError("config.json", "no JSON", "a JSON object as published with the model") from error
    if not isinstance(config, dict):
        raise InputError("config.json", type(config).__name__, "a JSON object as published with the model")
    return model_spec(config, str(config.get("_name_or_path") or "uploaded config.json"))
