"""Every source of a config.json and every way the hub refuses: the real client against a small hub on this machine."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from planner.errors import InputError
from planner.hub import HubError, find_model, from_hub, model_from

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "torch_dtype": "bfloat16",
}
MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
COMMIT = "0" * 39 + "1"


class Hub(ThreadingHTTPServer):
    """As much of the hub's HTTP interface as the client asks for one file and the model's card.

    Repositories are named for what they do; `team/secret` needs the token `good`.
    """

    daemon_threads = True
    files: ClassVar[dict[tuple[str, str], Any]] = {
        ("team/open", "config.json"): CONFIG,
        ("team/secret", "config.json"): CONFIG,
        ("team/fp8", "config.json"): CONFIG,
        ("team/fp8", "hf_quant_config.json"): MODELOPT,
        ("team/card-fails", "config.json"): CONFIG,
        ("team/odd", "config.json"): ["not", "an", "object"],
    }

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        parts = self.path.partition("?")[0].strip("/").split("/")
        card = parts[:2] == ["api", "models"]
        repo, file = "/".join(parts[2:4] if card else parts[:2]), parts[-1]
        if repo == "team/slow":
            time.sleep(1)
        if repo == "team/secret" and self.headers.get("authorization") != "Bearer good":
            return self.send(401, error="RepoNotFound")
        if repo == "team/busy":
            return self.send(429)
        if repo not in ("team/weights-only", "team/gated", *(known for known, _ in self.server.files)):
            return self.send(404, error="RepoNotFound")
        if card:
            return self.card(repo)
        if repo == "team/gated":
            return self.send(403, error="GatedRepo")
        if (repo, file) not in self.server.files:
            return self.send(404, error="EntryNotFound")
        return self.send(200, self.server.files[repo, file])

    def card(self, repo: str) -> None:
        if repo == "team/card-fails":
            return self.send(500)
        files = [{"rfilename": file} for known, file in self.server.files if known == repo]
        counts = {"parameters": {"BF16": 90_240}, "total": 90_240}
        return self.send(200, {"id": repo, "safetensors": counts, "siblings": files})

    def send(self, status: int, body: Any = None, error: str = "") -> None:
        content = json.dumps(body).encode() if body is not None else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hash((self.path, content)):x}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if error:
            self.send_header("X-Error-Code", error)
            self.send_header("X-Error-Message", error)
        with suppress(ConnectionError):  # a client that waited no longer has hung up
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    server = Hub()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def refusal(repo: str, tmp_path: Path, **options: Any) -> HubError:
    with pytest.raises(HubError) as refused:
        from_hub(repo, cache_dir=tmp_path, **options)
    assert "\n" not in str(refused.value)
    assert repo in str(refused.value)
    return refused.value


def test_an_id_is_read_from_the_hub_with_its_parameter_count(hub: Hub, tmp_path: Path) -> None:
    found = find_model("team/open", cache_dir=tmp_path)
    assert (found.origin, found.published_parameters) == ("hub", 90_240)
    assert found.spec.name == "team/open"
    assert found.spec.num_hidden_layers == 2


def test_modelopt_keeps_its_quantisation_in_a_second_file(hub: Hub, tmp_path: Path) -> None:
    assert model_from("team/fp8", cache_dir=tmp_path).quantization_config == MODELOPT


def test_a_card_that_fails_costs_only_the_parameter_count(hub: Hub, tmp_path: Path) -> None:
    found = find_model("team/card-fails", cache_dir=tmp_path)
    assert found.spec.hidden_size == 64
    assert found.published_parameters is None


def test_a_private_repository_is_told_from_a_missing_one(hub: Hub, tmp_path: Path) -> None:
    private = refusal("team/secret", tmp_path)
    assert private.kind == "private"
    assert "HF_TOKEN" in str(private)
    assert refusal("team/secret", tmp_path, token="bad").kind == "private"
    assert find_model("team/secret", token="good", cache_dir=tmp_path).spec.vocab_size == 256
    assert refusal("team/nothing", tmp_path).kind == "missing"


def test_the_environments_token_is_used(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "good")
    assert find_model("team/secret", cache_dir=tmp_path).origin == "hub"


def test_a_gated_repository_says_where_to_ask(hub: Hub, tmp_path: Path) -> None:
    gated = refusal("team/gated", tmp_path)
    assert gated.kind == "gated"
    assert f"{hub.url}/team/gated" in str(gated)


@pytest.mark.parametrize(("repo", "kind"), [("team/weights-only", "no_config"), ("team/busy", "refused")])
def test_other_refusals_have_their_own_message(hub: Hub, tmp_path: Path, repo: str, kind: str) -> None:
    assert refusal(repo, tmp_path).kind == kind


def test_a_hub_that_is_not_there_is_offline_but_its_copy_stays(hub: Hub, tmp_path: Path) -> None:
    find_model("team/open", cache_dir=tmp_path)
    nowhere = "http://127.0.0.1:9"  # the discard port: refused at once
    assert find_model("team/open", cache_dir=tmp_path, endpoint=nowhere).spec.hidden_size == 64
    assert refusal("team/fp8", tmp_path, endpoint=nowhere).kind == "offline"


def test_the_time_limit_is_for_everything(hub: Hub, tmp_path: Path) -> None:
    started = time.monotonic()
    assert refusal("team/slow", tmp_path, timeout=0.4).kind == "timeout"
    assert time.monotonic() - started < 2


def test_a_second_reading_comes_from_the_cache(hub: Hub, tmp_path: Path) -> None:
    find_model("team/open", cache_dir=tmp_path)
    hub.asked.clear()
    find_model("team/open", cache_dir=tmp_path)
    assert not [line for line in hub.asked if line.startswith("GET /team/open")]


def test_a_config_that_is_no_object_names_the_file(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="JSON object"):
        find_model("team/odd", cache_dir=tmp_path)


def test_a_malformed_id_is_never_asked_for(hub: Hub, tmp_path: Path) -> None:
    for reference in ("team/op en", "llama-99x", "a/b/c"):
        with pytest.raises(InputError):
            find_model(reference, cache_dir=tmp_path)
    assert hub.asked == []


def test_the_catalog_answers_before_disk_and_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama-3-8b").mkdir()
    (tmp_path / "llama-3-8b" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    assert find_model("Llama-3-8B").origin == "catalog"
    assert find_model("llama-3-8b").published_parameters == 8_030_261_248
    assert find_model("./llama-3-8b").spec.hidden_size == 64
    assert hub.asked == []


def test_a_folder_and_its_config_are_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    folder, file = find_model(tmp_path), find_model(str(tmp_path / "config.json"))
    assert folder == file
    assert (folder.origin, folder.spec.name) == ("file", str(tmp_path))


def test_a_path_that_is_not_there_names_itself(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=str(tmp_path)):
        find_model(str(tmp_path / "config.json"))


def test_an_upload_is_read_from_its_bytes() -> None:
    assert find_model(json.dumps(CONFIG).encode()).origin == "upload"
    for content in (b"\xff\xfe", b"<html>", b"[1]", b"{" * 100, b" " * (4 * 2**20 + 1)):
        with pytest.raises(InputError):
            find_model(content)
