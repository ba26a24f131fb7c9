# SPDX-License-Identifier: Apache-2.0
"""A table of reviews: products and stars are drawn, a model writes, another one rates."""

import os

from penstock import Penstock

URL = os.environ.get("MODEL_URL", "https://api.openai.com/v1")
PRICES = {"gpt-5-mini": {"usd_per_million_tokens": {"input": 0.25, "output": 2.0}}}

app = Penstock("reviews")
openai = app.provider(
    "openai", base_url=URL, api="openai", paid=True, max_parallel=16, models=PRICES
)
model = openai.model("gpt-5-mini", max_tokens=60)

reviews = app.table("reviews", buffer_size=32)
reviews.seed(
    "product",
    source=[{"name": name} for name in ("pump", "gate", "kettle", "lamp", "boat", "oar", "net")],
)
reviews.sample("stars", choices=[1, 2, 3, 4, 5], weights=[1, 1, 2, 4, 6])
reviews.sample("tone", choices=["dry", "warm"], when="{{ stars > 3 }}", otherwise=["curt", "angry"])
reviews.llm(
    "review",
    model=model,
    prompt="Write a {{ tone }} review of a {{ product.name }}, {{ stars }} of 5 stars.",
)
reviews.llm("title", model=model, prompt="Give this review a title: {{ review }}")
reviews.check("long", lambda row: len(row["review"]) > 20, on_fail="again", attempts=2)
