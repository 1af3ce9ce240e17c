"""A steady load on a vLLM server: a fixed number of completions always in flight, until the time is up or Ctrl-C.

python -m scripts.load http://127.0.0.1:8111 --concurrency 12
"""

import argparse
import random
import threading
import time
from contextlib import suppress

import requests

SHARED_PREFIX = [7] * 256  # every other prompt opens with it, so that the prefix cache has something to find


def prompt(length: int, chance: random.Random) -> list[int]:
    """A prompt of so many random token ids, for a vocabulary of 256 or more; half of the prompts share a prefix."""
    tokens = [chance.randrange(2, 256) for _ in range(length)]
    return (SHARED_PREFIX + tokens)[:length] if chance.random() < 0.5 else tokens


def around(mean: int, chance: random.Random) -> int:
    """A length between half and one and a half times the mean, so that the requests do not march in step."""
    return chance.randint(mean // 2, mean * 3 // 2)


def keep_busy(url: str, stop: threading.Event, *, seed: int, prompt_tokens: int, output_tokens: int) -> None:
    """One client: sends a request, waits for its answer, sends the next; after an error, a second later."""
    chance = random.Random(seed)
    while not stop.is_set():
        body = {
            "prompt": prompt(around(prompt_tokens, chance), chance),
            "max_tokens": around(output_tokens, chance),
            "ignore_eos": True,
        }
        try:
            requests.post(f"{url}/v1/completions", json=body, timeout=600).raise_for_status()
        except requests.RequestException as error:
            if not stop.is_set():
                print(f"load: {error}")
                stop.wait(1)


def start(url: str, *, concurrency: int, prompt_tokens: int, output_tokens: int) -> threading.Event:
    """Start the clients in the background; the load ends when the returned event is set."""
    stop = threading.Event()
    for seed in range(concurrency):
        options = {"seed": seed, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
        threading.Thread(target=keep_busy, args=(url, stop), kwargs=options, daemon=True).start()
    return stop


def main() -> None:
    parser = argparse.ArgumentParser(description="A steady load on a vLLM server.")
    parser.add_argument("url", help="the server, such as http://127.0.0.1:8111")
    parser.add_argument("--concurrency", type=int, default=12, help="requests in flight")
    parser.add_argument("--prompt-tokens", type=int, default=600, help="mean length of a prompt")
    parser.add_argument("--output-tokens", type=int, default=400, help="mean length of an answer")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long")
    given = vars(parser.parse_args())
    url, seconds = given.pop("url"), given.pop("seconds")
    stop = start(url, **given)
    with suppress(KeyboardInterrupt):
        time.sleep(min(seconds, threading.TIMEOUT_MAX))
    stop.set()


if __name__ == "__main__":
    main()
