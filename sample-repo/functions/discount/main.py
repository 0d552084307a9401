"""Takes 10 % off the total."""

import os


def main(params):
    percent = int(os.environ["DISCOUNT_PERCENT"])
    return {**params, "total": params["total"] * (100 - percent) / 100, "discount": percent}
