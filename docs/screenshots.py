"""Draw docs/images/*.png: the viewer in a headless Chromium, on the tutorial's function and on GPT-2.

`make screenshots` runs it. Colours are reduced to a palette, as the pictures are to stay small.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import aotkit
from aotkit import Graphs
from aotkit.benchmark.workloads import byte_tokens, gpt2, tutorial, tutorial_inputs
from tests.view.browser import Browser

IMAGES = Path(__file__).resolve().parent / "images"
SIZE = (1200, 640)
COLOURS = 128
ROOT = """const root = document.querySelector("#aotkit").shadowRoot;"""
CHOOSE = """root.querySelector(".value").click();"""
# The body of the model, and in both graphs the stack of its layers.
LAYERS = r"""
    root.querySelector(".node").dispatchEvent(new MouseEvent("dblclick"));
    await new Promise(requestAnimationFrame);
    for (const node of root.querySelectorAll(".node"))
        if (node.textContent.includes("11 \u00d7")) node.scrollIntoView({block: "center", inline: "center"});
"""


def gpt2_graphs() -> Graphs:
    """A training step of GPT-2 with twelve layers; with a mask of four dimensions it is one graph."""
    tokens, mask = byte_tokens(2, 128), torch.ones(2, 1, 128, 128, dtype=torch.bool).tril()
    model: Any = gpt2(layers=12)
    model.loss_type = "ForCausalLM"  # otherwise it logs a warning, which splits Dynamo's graph in two
    return aotkit.extract(model, tokens, attention_mask=mask, labels=tokens, partition="nx_min_cut")


def draw(browser: Browser, graphs: Graphs, name: str, script: str = "") -> None:
    """Write images/`name`.png, of the viewer after `script` has run in it."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        graphs.save_html(page)
        browser.open(page)
        browser.run(f"(async () => {{ {ROOT} {script} await new Promise(requestAnimationFrame); }})()")
        browser.screenshot(page.with_suffix(".png"))
        with Image.open(page.with_suffix(".png")) as image:
            image.convert("RGB").quantize(COLOURS).save(IMAGES / f"{name}.png", optimize=True)
    print(IMAGES / f"{name}.png")


def main() -> None:
    function = aotkit.extract(tutorial, *tutorial_inputs(256, 512), partition="min_cut")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(folder, *SIZE)
        draw(browser, function, "tutorial")
        draw(browser, function, "saved_value", CHOOSE)
        draw(browser, gpt2_graphs(), "gpt2", LAYERS)
        browser.close()


if __name__ == "__main__":
    main()
