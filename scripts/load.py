"""A load on a vLLM server until the time is up or Ctrl-C: so many completions always in flight, or so many a second.

python -m scripts.load http://127.0.0.1:8111 --concurrency 12
python -m scripts.load http://127.0.0.1:8111 --rate 3
"""

import argparse
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import requests

SHARED_PREFIX = [7] * 256  # some prompts open with it, so that the prefix cache has something to find


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked.

    prompt_tokens  mean length of a prompt                          [tokens]
    output_tokens  mean length of an answer                         [tokens]
    shared         of the prompts, those that share their beginning [ratio]
    spread         lengths lie within this share of their means, so that requests do not march in step  [ratio]
    """

    prompt_tokens: int = 600
    output_tokens: int = 400
    shared: float = 0.5
    spread: float = 0.5

    def body(self, chance: random.Random) -> dict[str, object]:
        """One request, of random token ids, for a vocabulary of 256 or more."""
        length = self._around(self.prompt_tokens, chance)
        tokens = [chance.randrange(2, 256) for _ in range(length)]
        prompt = (SHARED_PREFIX + tokens)[:length] if chance.random() < self.shared else tokens
        return {"prompt": prompt, "max_tokens": self._around(self.output_tokens, chance), "ignore_eos": True}

    def _around(self, mean: int, chance: random.Random) -> int:
        return max(1, round(mean * chance.uniform(1 - self.spread, 1 + self.spread)))


def send(url: str, stop: threading.Event, body: dict[str, object]) -> None:
    """One request; after an error, a second passes before the next."""
    try:
        requests.post(f"{url}/v1/completions", json=body, timeout=600).raise_for_status()
    except requests.RequestException as error:
        if not stop.is_set():
            print(f"load: {error}")
            stop.wait(1)


def start(url: str, *, concurrency: int, request: Request = Request()) -> threading.Event:
    """Keep so many requests in flight, in the background; the load ends when the returned event is set."""
    stop = threading.Event()

    def keep_busy() -> None:
        chance = random.Random()  # no seed: the prompts of an earlier load would be found in the prefix cache
        while not stop.is_set():
            send(url, stop, request.body(chance))

    for _ in range(concurrency):
        threading.Thread(target=keep_busy, daemon=True).start()
    return stop


def arrive(url: str, *, rate: float, request: Request = Request(), at_random: bool = True) -> threading.Event:
    """Send so many requests a second, at random times or evenly, in the background, whatever the server makes of it."""
    stop, chance = threading.Event(), random.Random()

    def keep_arriving() -> None:
        due = time.monotonic()
        while not stop.wait(max(0.0, due - time.monotonic())):
            body = request.body(chance)
            threading.Thread(target=send, args=(url, stop, body), daemon=True).start()
            due += chance.expovariate(rate) if at_random else 1 / rate

    threading.Thread(target=keep_arriving, daemon=True).start()
    return stop


def main() -> None:
    parser = argparse.ArgumentParser(description="A load on a vLLM server.")
    parser.add_argument("url", help="the server, such as http://127.0.0.1:8111")
    parser.add_argument("--concurrency", type=int, default=12, help="requests in flight")
    parser.add_argument("--rate", type=float, help="requests a second, at random times, instead")
    parser.add_argument("--prompt-tokens", type=int, default=600, help="mean length of a prompt")
    parser.add_argument("--output-tokens", type=int, default=400, help="mean length of an answer")
    parser.add_argument("--shared", type=float, default=0.5, help="share of prompts with a common beginning")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long")
    given = parser.parse_args()
    asked = Request(prompt_tokens=given.prompt_tokens, output_tokens=given.output_tokens, shared=given.shared)
    if given.rate:
        stop = arrive(given.url, rate=given.rate, request=asked)
    else:
        stop = start(given.url, concurrency=given.concurrency, request=asked)
    with suppress(KeyboardInterrupt):
        time.sleep(min(given.seconds, threading.TIMEOUT_MAX))
    stop.set()


if __name__ == "__main__":
    main()
