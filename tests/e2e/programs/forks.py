"""Start a child of multiprocessing that attaches to a name, compiles and returns: ``forks.py NAME
METHOD``."""

import multiprocessing
import sys


def work(name: str) -> None:
    import cachesvc_client

    cachesvc_client.attach(name)
    import torch
    from model import inputs

    with torch.no_grad():
        torch.compile(lambda x: x.cos() * 2 + 1)(inputs())


if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[2]).Process(target=work, args=(sys.argv[1],))
    process.start()
    process.join()
    sys.exit(process.exitcode)
