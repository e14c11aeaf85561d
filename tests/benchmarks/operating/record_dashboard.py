"""The moving picture of the README, and beside it the manual's still: the dashboard of a real `hotdraft demo`.

    python -m tests.benchmarks.operating.record_dashboard --out docs/dashboard.gif

Needs a Chromium of the system. The demo's own report and picture are in `--run` afterwards.
"""

import argparse
import io
import re
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image

from tests.integration.dashboard.chromium import chromium

WINDOW = {"width": 1280, "height": 900}
WIDTH = 880
COLOURS = 64
FRAME_MS, LAST_MS = 160, 4000


def main(arguments: argparse.Namespace) -> None:
    demo = subprocess.Popen([sys.executable, "-P", "-m", "hotdraft", "demo", "--out", arguments.run])
    frames, still = [], b""
    with chromium() as browser:
        page = browser.new_page(viewport=WINDOW)
        page.goto(_address(arguments.run / "server.log"))
        page.get_by_text("by request").click()
        while demo.poll() is None:
            if not page.locator("#problem").is_visible():  # the server ends before the report is written
                frames.append(_frame(page.screenshot()))
                still = page.screenshot(full_page=True)
            time.sleep(arguments.every)
    durations = [FRAME_MS] * (len(frames) - 1) + [LAST_MS]
    frames[0].save(
        arguments.out, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True
    )
    arguments.out.with_suffix(".png").write_bytes(still)
    print(f"{len(frames)} frames, {arguments.out.stat().st_size / 1e6:.1f} MB in {arguments.out}")


def _address(log: Path) -> str:
    """Of the dashboard, as the server's log says it once it listens."""
    while True:
        if log.is_file() and (found := re.search(r"dashboard +(http\S+)", log.read_text())):
            return found.group(1)
        time.sleep(0.5)


def _frame(png: bytes) -> Image.Image:
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture = picture.resize((WIDTH, round(picture.height * WIDTH / picture.width)), Image.Resampling.LANCZOS)
    return picture.quantize(COLOURS, dither=Image.Dither.NONE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/dashboard.gif"))
    parser.add_argument("--run", type=Path, default=Path("runs/recorded"))
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two frames")
    main(parser.parse_args())
