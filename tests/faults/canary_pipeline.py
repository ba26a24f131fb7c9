# SPDX-License-Identifier: Apache-2.0
"""The app of the canaries: every task handles secrets and content, and most of them quote them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock import Context, Penstock, Secret, Skip
from tests.canaries import prose, word

HERE = Path(os.environ["CANARY_FOLDER"])
URL = os.environ["CANARY_PROVIDER"]
VAULT = Secret((HERE / "vault.txt").read_text().strip())

app = Penstock("canaries")
model = app.provider(
    "model", base_url=URL.replace("://", f"://me:{word('code_url_password')}@"), paid=True
)
strict = app.provider("strict", base_url=URL, paid=True, in_doubt="hold")
plain = app.provider("plain")  # its URL is in the configuration, with a password
log = logging.getLogger("canaries.app")

CHAT = "/v1/chat/completions"
HEADERS = {
    "x-api-key": word("x_api_key"),
    "cookie": f"sid={word('cookie')}",
    "x-vault": VAULT.reveal(),
}


def asked(name: str, **more: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": prose(name)}], **more}


def once(name: str) -> bool:
    """Is this the first time, over all processes?"""
    try:
        (HERE / f"{name}.once").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _headers(reply: Any) -> dict[str, str]:
    """But for what nobody could know to be a secret."""
    return {name: value for name, value in reply.headers.items() if name != "x-echo"}


@app.task(uses=model, max_attempts=1)
async def good(ctx: Context, text: str) -> dict[str, Any]:
    """A 429 and a failure first, then an answer that is the result."""
    reply = await model.http.post(f"{CHAT}?key={word('query_key')}", json=asked("prompt"))
    reply.raise_for_status()
    return {"said": reply.json(), "own": prose("result")}


@app.task(uses=model, max_attempts=1)
async def shows_answer(ctx: Context) -> None:
    """A completion that is no JSON, in the error of whoever wanted JSON."""
    body = asked("prompt", case="malformed")
    reply = await model.http.post(CHAT, json=body, headers=HEADERS)
    secret_word = prose("local_variable")
    try:
        json.loads(reply.text[1:] + secret_word[:0])
    except ValueError as error:
        raise ValueError(f"No JSON: {reply.text!r} from {reply.request!r}") from error


@app.task(uses=model, max_attempts=1)
async def shows_stream(ctx: Context) -> None:
    pieces = []
    async with model.http.stream("POST", CHAT, json=asked("prompt", stream=True)) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                pieces.append(choice["delta"].get("content") or "")
    raise RuntimeError(f"I do not like this: {''.join(pieces)}")


@app.task(uses=model, max_attempts=1)
async def broken_stream(ctx: Context) -> None:
    body = asked("prompt", case="broken")
    seen = b""
    with contextlib.suppress(Exception):
        async with model.http.stream("POST", CHAT, json=body) as reply:
            async for piece in reply.aiter_bytes():
                seen += piece
    raise ValueError(f"It broke off after {seen!r}")


@app.task(uses=model, max_attempts=1)
def in_thread(ctx: Context) -> None:
    image = base64.b64encode(prose("image").encode() * 4).decode()
    body = {"model": "m", "input": prose("embedding_input"), "image": image}
    reply = model.http_sync.post("/v1/embeddings", json=body, headers=HEADERS)
    reply.raise_for_status()
    request = reply.request
    raise KeyError(f"{request!r} {request.headers!r} {request.content!r} {_headers(reply)!r}")


@app.task(uses=model, max_attempts=1)
async def tool_call(ctx: Context) -> None:
    reply = await model.http.post(CHAT, json=asked("prompt", case="tool"), headers=HEADERS)
    call = reply.json()["choices"][0]["message"]["tool_calls"][0]
    raise ValueError(f"unknown tool: {call!r}")


@app.task(max_attempts=1)
async def quotes_payload(ctx: Context, text: str) -> None:
    ctx.log.info("begins")
    raise ValueError(f"cannot handle {text!r}, or {json.dumps({'text': text})}")


@app.task(max_attempts=1, executor="process")
def in_process(ctx: Context, text: str) -> None:
    raise ValueError(f"cannot handle {text!r} with {os.environ['CANARY_TOKEN']}")


@app.task()
async def skips(ctx: Context, text: str) -> None:
    raise Skip(f"nothing to do with {text}")


@app.task()
async def result_is_no_json(ctx: Context, text: str) -> object:
    class Model:
        def model_dump(self, mode: str) -> object:
            raise ValueError(f"cannot dump {text}")

    return Model()


@app.task(max_attempts=1)
async def quotes_secrets(ctx: Context) -> None:
    lines = os.environ["CANARY_PRIVATE_KEY"]
    forms = (lines, repr(lines), json.dumps(lines), quote(lines), _base64(lines))
    known = (os.environ["CANARY_TOKEN"], VAULT.reveal(), repr(VAULT), _base64(VAULT.reveal()))
    text = " | ".join((*forms, *known, os.environ["HTTPS_PROXY"]))
    log.warning("about to send %s", text)
    raise RuntimeError(text)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@app.task(uses=plain, max_attempts=1)
async def refused(ctx: Context) -> None:
    reply = await plain.http.get(f"/refused?api_key={word('query_key')}", headers=HEADERS)
    log.error("The provider says %s %s", reply.text, _headers(reply))
    raise ValueError(f"{reply.text} for {reply.request.url}")


@app.task(uses=plain, timeout=0.2, max_attempts=1)
async def times_out(ctx: Context, text: str) -> None:
    await plain.http.post("/hangs", json={"text": text})


@app.task(uses=model)
async def dies(ctx: Context) -> str:
    """Buys an answer, dies, and buys no second one."""
    reply = await model.http.post(CHAT, json=asked("prompt", case="dies"), headers=HEADERS)
    if once("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    return str(reply.json()["choices"][0]["message"]["content"])


@app.task(uses=strict)
async def held(ctx: Context) -> None:
    """Dies while a call is in the air; a person shall look."""
    death = asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), signal.SIGKILL)
    try:
        await strict.http.post("/hangs", json=asked("prompt"), headers=HEADERS)
    finally:
        death.cancel()


@app.task(uses=model)
async def over_budget(ctx: Context) -> None:
    await model.http.post(CHAT, json=asked("prompt", max_tokens=100), headers=HEADERS)


@app.task(uses=model, max_attempts=1)
async def sdk_openai(ctx: Context) -> None:
    import openai

    client = openai.AsyncOpenAI(
        base_url=f"{URL}/v1", http_client=model.http_client(), max_retries=0
    )
    message: Any = {"role": "user", "content": prose("quoted_prompt")}
    await client.chat.completions.create(model="bad", messages=[message])


@app.task(uses=model, max_attempts=1)
def sdk_anthropic(ctx: Context) -> None:
    import anthropic

    client = anthropic.Anthropic(
        api_key=word("x_api_key"),
        base_url=URL,
        http_client=model.http_client_sync(),
        max_retries=0,
    )
    message: Any = {"role": "user", "content": prose("quoted_prompt")}
    client.messages.create(model="bad", max_tokens=10, messages=[message])
