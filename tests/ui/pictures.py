"""``PYTHONPATH=.torch/browser python -m tests.ui.pictures``: takes the pictures of docs/web.md.

What `make test-ui` installs must be there. The registry behind the pictures has made-up names and starts.
"""

from __future__ import annotations

import io
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "bundle"), str(ROOT / "tests" / "registry")]

from cachesvc.domain.retention import DAY  # noqa: E402
from cachesvc_client.wire.partitions import known_partition  # noqa: E402

from .provider import let_people_in, running_provider  # noqa: E402
from .site import FINGERPRINT, Site, site  # noqa: E402 - after the path of the tests' modules
from .test_browser import log_in, open_page, program  # noqa: E402

FOLDER = ROOT / "docs" / "images"
COLD = "llm/llama-8b decode/bf16/default NVIDIA L40S"
"""The entry that goes cold on the last day."""
DAYS = 16
"""Days with starts."""
WIDTH, NARROW = 1440, 390
ON_A_PHONE = ("web-overview", "web-name", "web-misses")
"""Pages that are taken in the narrow width too."""
GPUS = (("NVIDIA H200", "9.0"), ("NVIDIA A100-SXM4-80GB", "8.0"), ("NVIDIA L40S", "8.9"))
NAMES = {
    "llm/llama-8b": ("prefill/bf16/default", "decode/bf16/default", "decode/bf16/max-autotune"),
    "vision/resnet50": ("train/bf16/default", "serve/f16/default"),
    "speech/whisper": ("encoder/f16/default", "decoder/f16/default"),
}


def contents(one: Site) -> None:
    """Publish three names for several GPUs, and report starts with them."""
    chance = random.Random(19)
    for what, role in (("admin", "admin"), ("reporter", "report"), ("second reporter", "report")):
        one.token(what, role, "*", label={"admin": "operations"}.get(what, what))
    for name, targets in NAMES.items():
        for gpu, capability in GPUS[: 3 if name.startswith("llm") else 2]:
            for target in targets:
                publish(one, chance, name, target, gpu, capability)
    one.inside.clock.now += 10_800
    for _ in range(DAYS):
        one.inside.clock.now += DAY
        for what in one.published:
            for node in "0123456789abcdef"[: chance.randrange(3, 14)]:
                state = chance.choices(("hit", "unused", "partial", "miss"), (40, 3, 2, 1))[0]
                if what != COLD:
                    one.start(what, node, state, saved=chance.uniform(20, 60) if state == "hit" else None)
    for node, token in (("a", "reporter"), ("b", "reporter"), ("c", "second reporter")):
        one.start(
            COLD, node, "inert", token, why="inductor: triton.cudagraphs is true here, false in the entry"
        )
    one.inside.clock.now += 1500


def publish(one: Site, chance: random.Random, name: str, target: str, gpu: str, capability: str) -> None:
    if target.endswith("max-autotune") and gpu != GPUS[0][0]:
        return
    older = gpu == GPUS[1][0] and target.startswith("prefill")
    one.publish(
        f"{name} {target} {gpu}",
        name=name,
        target=target,
        fingerprint={**FINGERPRINT, "gpu": gpu, "gpu_capability": capability},
        scopes=("gpu", "host"),
        content=chance.randbytes(chance.randrange(200_000, 900_000)),
        measured={"compile": chance.uniform(30, 200), "first_call": 60.0},
        model=b"older" if older else b"newest",
        **({"sequence": 1_000} if older else {}),
    )


def pictures(one: Site) -> dict[str, str]:
    """Return the address of each picture's page, by its name."""
    here = known_partition(one.published[COLD].manifest.fingerprint)
    return {
        "web-overview": "/ui",
        "web-coverage": "/ui/coverage/team/llm/llama-8b",
        "web-explain": f"/ui/explain/team/llm/llama-8b?environment={here}",
        "web-name": "/ui/names/team/llm/llama-8b",
        "web-misses": "/ui/misses",
    }


def picture(page: Any, path: Path) -> None:
    """Save what the window shows, with few colours: the documents shall stay small."""
    from PIL import Image

    data = page.screenshot(full_page=True)
    Image.open(io.BytesIO(data)).convert("RGB").quantize(160).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        site(Path(folder), contents) as one,
        sync_playwright() as driver,
    ):
        chromium = driver.chromium.launch(executable_path=program(), args=["--no-sandbox"])
        page = open_page(chromium, WIDTH)
        page.set_viewport_size({"width": WIDTH, "height": 300})
        with running_provider(one.inside.clock) as provider:
            let_people_in(one, provider)
            # The address of a provider as people have one: nothing is asked of it for the picture.
            login = one.inside.registry.outside.login
            client = replace(login.client, issuer="https://login.example/realms/ml")
            object.__setattr__(one.inside.registry.outside, "login", replace(login, client=client))
            page.goto(f"{one.url}/ui/login")
            picture(page, FOLDER / "web-login.png")
            object.__setattr__(one.inside.registry.outside, "login", None)
        log_in(page, one)
        for name, path in pictures(one).items():
            page.goto(one.url + path)
            picture(page, FOLDER / f"{name}.png")
        page.set_viewport_size({"width": NARROW, "height": 300})
        for name in ON_A_PHONE:
            page.goto(one.url + pictures(one)[name])
            picture(page, FOLDER / f"{name}-{NARROW}.png")
        chromium.close()


if __name__ == "__main__":
    main()
