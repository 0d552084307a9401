"""Adds up an order: {"items": [{"name": "tea", "price": 4, "count": 3}]}."""


def main(params):
    items = params.get("items", [])
    if not items:
        raise ValueError("the order has no items")
    total = sum(item["price"] * item.get("count", 1) for item in items)
    return {"items": items, "total": total}
