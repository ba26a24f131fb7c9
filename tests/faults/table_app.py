# SPDX-License-Identifier: Apache-2.0
"""The app of the campaign of tables: three columns that cost money, a check, and a function."""

from __future__ import annotations

import os

from penstock import Penstock

SCORE = {
    "type": "object",
    "properties": {"stars": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["stars"],
}

app = Penstock("tables")
api = app.provider(
    "api", base_url=f"{os.environ['PENSTOCK_TEST_PROVIDER']}/v1", api="openai", paid=True
)
model = api.model("m", max_tokens=50)

reviews = app.table("reviews", buffer_size=10)
reviews.seed("product", source=[{"name": f"coat {number}"} for number in range(7)])
reviews.sample("stars", choices=[1, 2, 3, 4, 5])
reviews.sample("id", ids="review-{row}")
reviews.llm("review", model=model, prompt="{{ id }}: {{ stars }} stars for {{ product.name }}.")
reviews.llm("score", model=model, prompt="Rate: {{ review }}", schema=SCORE, attempts=2)
reviews.llm("title", model=model, prompt="A title for: {{ review }}")
reviews.check("fine", lambda row: not row["review"].startswith("f"), on_fail="again", attempts=2)


@reviews.column()
def length(review: str, title: str) -> int:
    return len(review) + len(title)
