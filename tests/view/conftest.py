"""Pages in a browser."""

import tempfile

import pytest

from tests.view.browser import Browser

HELPERS = """
    const root = document.querySelector("[id^=aotkit]").shadowRoot;
    const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
"""


@pytest.fixture(scope="module")
def browser():
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(folder)
        yield browser
        browser.close()


@pytest.fixture
def shown(browser, tmp_path, request):
    """Show graphs or a diff, and return a function that runs JavaScript there; the page must be in order to the end.

    The JavaScript may use `root`, `frame`, and what the test's module defines in its own `HELPERS`.
    """
    helpers = HELPERS + request.module.HELPERS

    def show(subject):
        subject.save_html(tmp_path / "x.html")
        browser.open(tmp_path / "x.html")
        return lambda script: browser.run(f"(async () => {{ {helpers} {script} }})()")

    yield show
    assert browser.problems() == []
    assert browser.requests() == []
