# SPDX-License-Identifier: Apache-2.0
"""Judge reviews by three calls each of the OpenAI SDK; each answer is bought once."""

import os

from openai import AsyncOpenAI

from penstock import Context, Penstock

URL = os.environ.get("MODEL_URL", "https://api.openai.com/v1")

app = Penstock("reviews")
openai = app.provider("openai", base_url=URL, paid=True, max_parallel=8)


@app.task(uses=openai, timeout=120)
async def judge(ctx: Context, review: str) -> dict[str, str]:
    client = AsyncOpenAI(base_url=URL, http_client=openai.http_client(), max_retries=0)
    mood = await ask(client, f"In one word, how does the writer feel? {review}")
    wish = await ask(client, f"What does the writer want? Feels: {mood}. {review}")
    reply = await ask(client, f"Answer the writer, who wants: {wish}. {review}")
    return {"mood": mood, "wish": wish, "reply": reply}


async def ask(client: AsyncOpenAI, prompt: str) -> str:
    reply = await client.chat.completions.create(
        model="gpt-5", messages=[{"role": "user", "content": prompt}], max_completion_tokens=60
    )
    return reply.choices[0].message.content or ""
