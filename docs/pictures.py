"""Draw the pictures of docs/pages.md: the report and the trace viewer of a finished default run.

``python docs/pictures.py`` opens the pages of ``results/`` in Chromium, which must be installed, and writes
``docs/pictures/*.png``. ``--results FOLDER`` names another folder of results.
"""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
# By the picture's name: the page in the folder of results, and the size of the window in pixels.
PAGES = {
    "report": ("tables/quick.html", (1280, 1110)),
    "traces": ("quick/traces/test.html", (1280, 890)),
}
# A page draws itself with scripts, for which the browser waits this many milliseconds.
WAIT = 6000
# A screenshot has few colours; a palette makes its file a third as large.
COLOURS = 256


def draw(browser: str, page: Path, size: tuple[int, int], picture: Path) -> None:
    """Write the top of a ``page``, as a window of ``size`` shows it, to ``picture``."""
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += [f"--window-size={size[0]},{size[1]}", f"--virtual-time-budget={WAIT}", f"--screenshot={shot}"]
        subprocess.run([browser, *options, page.resolve().as_uri()], check=True, capture_output=True)
        with Image.open(shot) as image:
            image.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(picture, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE.parent / "results", help="folder of results")
    options = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        parser.error("no Chromium is installed")
    (HERE / "pictures").mkdir(exist_ok=True)
    for name, (page, size) in PAGES.items():
        path = options.results / page
        if not path.is_file():
            parser.error(f"{path} is missing; run: snakemake --cores all results/tables results/quick/traces/test.html")
        draw(browser, path, size, HERE / "pictures" / f"{name}.png")


if __name__ == "__main__":
    main()
