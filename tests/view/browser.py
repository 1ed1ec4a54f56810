"""A headless Chromium, driven over its DevTools pipe: a process, two pipes, and JSON that ends in a zero byte.

Source: https://chromedevtools.github.io/devtools-protocol. A driver such as Selenium would need a second program of
the very version of the browser.
"""

import base64
import json
import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable():
    return next(filter(None, map(shutil.which, NAMES)), None)


class BrowserError(RuntimeError):
    pass


class Browser:
    """One browser with one page."""

    def __init__(self, folder, width=1500, height=900):
        to_browser, from_test = os.pipe()
        from_browser, to_test = os.pipe()
        options = [
            "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", f"--user-data-dir={folder}", f"--window-size={width},{height}",
            "about:blank",
        ]  # fmt: skip
        # The browser reads from descriptor 3 and writes to 4.
        start = f"import os, sys; os.dup2({to_browser}, 3); os.dup2({to_test}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        command = [sys.executable, "-S", "-c", start, executable(), *options]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, to_test), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(to_test)
        self._write, self._read = os.fdopen(from_test, "wb"), os.fdopen(from_browser, "rb")
        self._number, self._session, self._rest = 0, None, b""
        self.events = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method, **params):
        """One command; its result. Events that come meanwhile are kept in `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        self._write.flush()
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        return answer["result"]

    def _next(self):
        while b"\0" not in self._rest:
            part = os.read(self._read.fileno(), 1 << 20)
            if not part:
                raise BrowserError("the browser has ended")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def open(self, path):
        """Load a file, and wait until it is shown."""
        self.events.clear()
        self.send("Page.navigate", url=f"file://{path}")
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script):
        """The value of an expression in the page; waits for a promise."""
        result = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description") or details["text"])
        return result["result"].get("value")

    def press(self, key, text=""):
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, **more)

    def emulate(self, scheme):
        """Pretend that the user prefers a "light" or "dark" scheme."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def requests(self):
        """The addresses that the page has asked for, but for itself and what it made."""
        asked = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [address for address in asked if not address.startswith(("file:", "blob:", "data:"))]

    def problems(self):
        """What the page has thrown, or the console calls an error."""
        thrown = [e["params"] for e in self.events if e["method"] == "Runtime.exceptionThrown"]
        said = [e["params"]["entry"] for e in self.events if e["method"] == "Log.entryAdded"]
        return thrown + [entry for entry in said if entry["level"] == "error"]

    def close(self):
        self.send("Browser.close")
        self._process.wait(timeout=20)
        self._write.close()
        self._read.close()
