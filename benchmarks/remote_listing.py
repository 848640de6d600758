"""How many requests does a pattern take in a bucket that holds much else?

Prediction: an answer names 1,000 objects. Of 100,000 other names beside 8 shards a pattern with a literal beginning
takes one request instead of 101, since the list starts at the beginning and stops behind it. A folder that holds 8
shards and a folder of 100,000 others takes one instead of 101, since the folder below counts as one name. What must be
looked through (a pattern that begins with a wildcard beside the others) takes 101, as before.

Measured: requests and seconds of a list, on a store of this machine. "all" lists everything below the folder, as every
pattern did before. The seconds are the server's, too, which goes through all names for every answer, and cuts them
where there is a delimiter: requests are what compares with other stores.

    python benchmarks/remote_listing.py    # writes results/remote_listing.json
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import _common  # noqa: F401 - finds the modules of tests
import store as stores
from _common import Table, heading, save

from gpupipe.sources.remote.clients import Obstore

_OTHERS = 100_000
_ANSWER = 1000
_CASES = (
    ("a-*.tar", "beside/", "a-", False),
    ("*.tar, others beside", "beside/", "", False),
    ("*.tar, others in a folder below", "below/", "", False),
    ("all, others beside", "beside/", "", True),
    ("all, others in a folder below", "below/", "", True),
)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    stores.PAGE = _ANSWER
    table = Table("list", "requests", "names", "s", first=32)
    rows: list[dict[str, Any]] = []
    with stores.store() as found:
        os.environ.update(found.environment)
        for folder, other in (("beside", ""), ("below", "z/")):
            home = f"{stores.BUCKET}/{folder}/"
            found.objects |= {f"{home}{other}{'Az'[k % 2]}{k:06d}.txt": b"" for k in range(_OTHERS)}
            found.objects |= {f"{home}a-{k}.tar": b"" for k in range(8)}
        client = Obstore(4, 60.0)
        for name, folder, start, deep in _CASES:
            found.asked.clear()
            began = time.perf_counter()
            names = client.names(f"s3://{stores.BUCKET}/{folder}", start, deep)
            seconds = time.perf_counter() - began
            assert sum(it.endswith(".tar") for it in names) == 8
            row = {"list": name, "requests": len(found.asked), "names": len(names), "seconds": round(seconds, 3)}
            rows.append(row)
            table.row(name, *(f"{value:,}" for value in list(row.values())[1:]))
    print(
        save("remote_listing", {**heading(__doc__, {"others": _OTHERS, "names in an answer": _ANSWER}), "rows": rows})
    )


if __name__ == "__main__":
    main()
