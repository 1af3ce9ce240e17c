"""A real vLLM on one address, started and ended at will, and clients that stream from it and take the time."""

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import NamedTuple

from monitor.engine import Engine, started
from scripts.load import Request


class Step(NamedTuple):
    """What the scheduler knew after one step: see tests.engine_truth.

    put_out  tokens put out so far                    [tokens]
    used     blocks held                              [blocks]
    tokens   in the KV cache, of each running request [tokens]
    blocks   of each running request                  [blocks]
    """

    put_out: int
    used: int
    tokens: list[int]
    blocks: list[int]

    def by_hand(self, block_size: int) -> int:
        """Blocks that requests of these lengths need when they share none."""
        return sum(ceil(tokens / block_size) for tokens in self.tokens)

    def waste(self, block_size: int) -> float:
        """Share of the held slots that hold no token. Blocks that requests share are full."""
        return sum(n * block_size - tokens for tokens, n in zip(self.tokens, self.blocks, strict=True)) / (
            self.used * block_size
        )


class EngineAt:
    """One address with a vLLM on it, or without."""

    def __init__(self, model: Path, port: int, truth: Path) -> None:
        self._engine = Engine(model=model, port=port)
        self._truth = truth
        self._running = ExitStack()
        self._flags: Mapping[str, str | float | bool] | None = None
        self._group = 0
        self.url = self._engine.url

    def serve(self, flags: Mapping[str, str | float | bool]) -> None:
        """Serve with these flags, which takes a start unless it does already."""
        if flags != self._flags:
            self.end()
            engine = replace(self._engine, flags={**flags, "scheduler_cls": "tests.engine_truth.Witness"})
            os.environ["ENGINE_TRUTH"] = str(self._truth)
            leash = self._running.enter_context(started(engine)).pid
            self._group = int(Path(f"/proc/{leash}/task/{leash}/children").read_text())
            self._flags = flags

    def end(self) -> None:
        """End it as an operator does, and return when it is gone."""
        self._running.close()
        self._flags = None

    def kill(self) -> None:
        """End all its processes at once, as the kernel does where memory is short."""
        os.killpg(self._group, signal.SIGKILL)
        self.end()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """The engine stands still for the length of a `with`; its API server, which leads the group, still answers."""
        os.killpg(self._group, signal.SIGSTOP)
        os.kill(self._group, signal.SIGCONT)
        try:
            yield
        finally:
            os.killpg(self._group, signal.SIGCONT)

    def steps(self, engine: str = "0") -> list[Step]:
        """Every step so far, but for one that is being written."""
        lines = (self._truth / f"{engine}.jsonl").read_text().splitlines(keepends=True)
        return [Step(*json.loads(line)) for line in lines if line.endswith("\n")]


@dataclass(slots=True)
class Answer:
    """One streamed answer.

    events  when a line came, monotonic [s], and the line: at the end it is read
    is_whole  whether it came to its end
    """

    events: list[tuple[float, bytes]] = field(default_factory=list)
    is_whole: bool = False

    @property
    def tokens(self) -> list[tuple[float, int]]:
        """When so many tokens had come, by the server's count in each event: one may bring several."""
        found = []
        for at, line in self.events:
            if usage := json.loads(line.removeprefix(b"data:")).get("usage"):
                found.append((at, usage["completion_tokens"]))
        return found

    @property
    def seconds_per_token(self) -> float:
        """From the first to the last, for each after the first."""
        (first, _), *_, (last, number) = self.tokens
        return (last - first) / (number - 1)


class Clients:
    """So many clients in a thread of their own, each with one request at a time, until they stop or leave."""

    def __init__(self, url: str, number: int, request: Request, headers: Mapping[str, str] = {}) -> None:
        self.answers: list[Answer] = []
        self._where, self._request, self._headers = url.removeprefix("http://"), request, headers
        self._is_stopping = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._busy: list[Future[None]] = [
            asyncio.run_coroutine_threadsafe(self._ask_on(random.Random(seed)), self._loop) for seed in range(number)
        ]

    async def _ask_on(self, chance: random.Random) -> None:
        while not self._is_stopping:
            await self._ask(self._request.body(chance))

    async def _ask(self, body: Mapping[str, object]) -> None:
        self.answers.append(answer := Answer())
        usage = {"include_usage": True, "continuous_usage_stats": True}
        content = json.dumps({**body, "stream": True, "stream_options": usage}).encode()
        headers = {"Host": self._where, "Content-Type": "application/json", "Connection": "close", **self._headers}
        headers["Content-Length"] = str(len(content))
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        host, port = self._where.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
        try:
            writer.write(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + content)
            assert b" 200 " in await reader.readline()
            while line := await reader.readline():
                if b"[DONE]" in line:
                    answer.is_whole = True
                    break
                if line.startswith(b"data:"):
                    answer.events.append((time.monotonic(), line))
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def stop(self) -> None:
        """Ask nothing more, and return when all answers have come."""
        self._is_stopping = True
        for each in self._busy:
            each.result(300)
        self._end()

    def leave(self) -> None:
        """All hang up at once."""
        for each in self._busy:
            each.cancel()
        self._end()

    def _end(self) -> None:
        asyncio.run_coroutine_threadsafe(self._rest(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _rest(self) -> None:
        """Connections of clients that left are closed too."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    @property
    def whole(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.is_whole]

    def tokens_between(self, start: float, end: float) -> int:
        """That came between these moments of the monotonic clock."""
        return sum(_by(answer, end) - _by(answer, start) for answer in self.answers)


def _by(answer: Answer, moment: float) -> int:
    return max((number for at, number in answer.tokens if at <= moment), default=0)


@contextmanager
def asking(url: str, number: int, request: Request, headers: Mapping[str, str] = {}) -> Iterator[Clients]:
    """Clients for the length of a `with`, that then let their answers come; where it fails, they leave."""
    clients = Clients(url, number, request, headers)
    try:
        yield clients
    except BaseException:
        clients.leave()
        raise
    clients.stop()
