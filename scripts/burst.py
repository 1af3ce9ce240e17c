"""A burst of equal requests on a vLLM server, all sent at once, each answer streamed and timed; prints JSON.

python -m scripts.burst http://127.0.0.1:8111 --model NAME --requests 64 --max-tokens 512

One thread, one connection a request, and nothing parsed before the end: what the client itself takes stays small.
"""

import argparse
import asyncio
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

PROMPT = "Hello, tell me about AI."


async def answer(host: str, port: int, message: bytes, began: float) -> dict[str, float]:
    """One request: seconds to its first token and to its last, and how many tokens there were, by the server's count.

    The server writes each event of its stream as one chunk, so a line that begins with "data:" is an event.
    """
    reader, writer = await asyncio.open_connection(host, port, limit=2**20)
    writer.write(message)
    status = (await reader.readline()).decode()
    if " 200 " not in status:
        raise OSError(f"the server answered {status.strip()}: {(await reader.read(2000)).decode(errors='replace')}")
    events: list[tuple[float, bytes]] = []
    while line := await reader.readline():
        if line.startswith(b"data:"):
            events.append((time.perf_counter() - began, line))
            if b"[DONE]" in line:
                break
    writer.close()
    *tokens, (_, last), _ = events
    usage = json.loads(last.removeprefix(b"data:"))["usage"]
    return {
        "first_s": tokens[0][0],
        "last_s": tokens[-1][0],
        "prompt_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
    }


async def burst(url: str, body: dict[str, Any], requests: int) -> list[dict[str, float]]:
    """The answers to so many equal requests, sent at the same moment."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    message = f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content
    began = time.perf_counter()
    return await asyncio.gather(*(answer(parts.hostname, parts.port or 80, message, began) for _ in range(requests)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Equal requests, all at once, timed.")
    parser.add_argument("url", help="the server, such as http://127.0.0.1:8111")
    parser.add_argument("--model", required=True, help="its name, as served")
    parser.add_argument("--requests", type=int, default=64, help="how many, all at once")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--max-tokens", type=int, default=512, help="of each answer, which is never shorter")
    parser.add_argument("--temperature", type=float, default=0.7)
    given = vars(parser.parse_args())
    url, requests = given.pop("url"), given.pop("requests")
    body = {**given, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    try:
        print(json.dumps(asyncio.run(burst(url, body, requests))))
    except (OSError, ValueError, LookupError) as error:
        sys.exit(f"burst: {error or type(error).__name__}")


if __name__ == "__main__":
    main()
