"""Chromium without a window, for tests of pages. Speaks its debugging protocol over a pipe: no port, no driver."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile

_PATIENCE_S = 60


def program():
    """The browser of this machine, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page. What it says on its console and what its scripts throw gathers in `complaints`."""

    def __init__(self, width=1280, height=900):
        self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def hand_over():  # the browser reads from 3 and writes to 4
            os.dup2(to_browser, 3)
            os.dup2(from_browser, 4)

        # Above 4, so that neither end is overwritten by the other's copy.
        to_browser, from_browser = _above(to_browser), _above(from_browser)
        self._child = subprocess.Popen(
            [program(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            + ["--remote-debugging-pipe", f"--user-data-dir={self._home.name}", "about:blank"],
            preexec_fn=hand_over,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._text, self._count, self._session = b"", 0, None
        self.complaints, self._loaded = [], False
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setFocusEmulationEnabled", enabled=True
        )  # keys reach the page whatever else is on the screen
        self.resize(width, height)

    def close(self):
        self._child.terminate()
        self._child.wait(_PATIENCE_S)
        os.close(self._write)
        os.close(self._read)
        self._home.cleanup()

    def open(self, path):
        self._loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._note(self._next())

    def call(self, method, **params):
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def ask(self, expression):
        """The value of a JavaScript expression, after the next frame is drawn."""
        frame = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        code = f"{frame}.then(() => ({expression}))"
        answer = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def changed(self, expression, before):
        """Its value as soon as it is not `before` any more; `before` itself if a hundred frames change nothing."""
        for _ in range(100):
            value = self.ask(expression)
            if value != before:
                break
        return value

    def resize(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        """name: "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", buttons=1, clickCount=1)

    def picture(self, path, whole=True):
        """The page as PNG: all of it, or what the window shows."""
        png = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(png))

    def _next(self):
        while b"\0" not in self._text:
            ready, _, _ = select.select([self._read], [], [], _PATIENCE_S)
            part = os.read(self._read, 1 << 16) if ready else b""
            assert part, "the browser does not answer" if not ready else "the browser has ended"
            self._text += part
        line, self._text = self._text.split(b"\0", 1)
        return json.loads(line)

    def _note(self, event):
        params = event.get("params", {})
        if event.get("method") == "Page.loadEventFired":
            self._loaded = True
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(str(params["args"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(str(params["entry"]))


def _above(descriptor):
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy
