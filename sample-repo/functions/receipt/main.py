"""Writes the receipt of an order."""


def main(params):
    lines = [f"{item.get('count', 1)} x {item['name']}" for item in params["items"]]
    lines.append(f"total: {params['total']}")
    return {"receipt": lines}
