"""Greets. Called with {"name": "Ada"}."""


def main(params):
    name = params.get("name", "world")
    return {"greeting": f"Hello, {name}!"}
