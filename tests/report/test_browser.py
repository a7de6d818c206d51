"""The page of a fit in a real browser: it says nothing on the console, asks for nothing, and fits a phone."""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections import deque
from typing import NamedTuple

import numpy as np
import pytest

from fedgrem.report.gain import Gains, SiteGain
from fedgrem.report.model import model_page
from fedgrem.report.summary import summarize
from tests.report.models import made_up

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

NAMES = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=f"no browser found: none of {', '.join(NAMES)}")

QUIETLY = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
           "--disable-background-networking", "--disable-component-update", "--disable-sync",
           "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe"]  # fmt: skip
"""A browser that does nothing of its own, finds no host, and is spoken to through two pipes."""
LAUNCH = """
import os, sys
hears, says = (os.dup(int(number)) for number in sys.argv[1:3])
for number, wanted in ((hears, 3), (says, 4)):
    os.dup2(number, wanted)
    os.set_inheritable(wanted, True)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads from descriptor 3 and writes to 4, which may be taken here."""
PATIENCE = 120.0
"""Seconds that a busy machine may take to answer."""
TOLD = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}


class Browser:
    """Chromium without a window, in its own protocol: JSON messages that end with a zero byte."""

    def __init__(self, folder):
        hears, self.say = os.pipe()
        self.hear, says = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", LAUNCH, str(hears), str(says), PROGRAM, *QUIETLY, f"--user-data-dir={folder}"],
            pass_fds=(hears, says), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(hears)
        os.close(says)
        self.rest, self.events, self.n_asked = b"", deque(), 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.say)
        os.close(self.hear)

    def ask(self, method, session=None, **params):
        """The answer to a command; events that come before it are kept."""
        self.n_asked += 1
        message = {"id": self.n_asked, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self.say, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.n_asked:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def wait_for(self, method):
        """Until this has happened."""
        while not any(event["method"] == method for event in self.events):
            self.events.append(self._next())

    def _next(self):
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.hear], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self.hear, 1 << 16)
            assert piece, "the browser has gone"
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """All that a page may hold: suspects, gains, spreads of their own, components without rows, a long name."""
    model = made_up(12, 2, 9, covariance_type="tied")
    model.site_names_[3] = "A-hospital-with-a-name-that-does-not-end-before-the-margin-of-a-phone"
    model.feature_names_in_ = np.array(["glucose", "a_column_with_a_long_name_and_no_place_to_break_it"], dtype=object)
    model.covariances_[-1] *= 9.0
    model.vanished_ = model.weights_ < 0.02
    gains = Gains([SiteGain(str(name), 80, 20, -3.0, -3.5, 0.5, 0.1) for name in model.site_names_], [], [], 0.2, True)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(model_page(model, summarize(model), gains), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


class Seen(NamedTuple):
    """What a page did when it was opened, every fold of it."""

    title: str
    width: int
    """Of the window, which a phone widens for a page that does not fit."""
    too_wide: int
    """Pixels by which it scrolls sideways."""
    asked: list[str]
    """Addresses, other than those that hold what they stand for."""
    told: list[str]
    """Messages on the console."""


def seen(browser, path, width):
    browser.events.clear()
    target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
    session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Network", "Log", "Runtime"):
        browser.ask(f"{domain}.enable", session)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.ask("Emulation.setDeviceMetricsOverride", session, **size)
    browser.ask("Page.navigate", session, url=path.as_uri())
    browser.wait_for("Page.loadEventFired")
    unfold = "for (const fold of document.querySelectorAll('details')) fold.open = true;"
    root = "const root = document.documentElement;"
    measure = "JSON.stringify([document.title, innerWidth, root.scrollWidth - root.clientWidth])"
    found = browser.ask("Runtime.evaluate", session, expression=unfold + root + measure)["result"]["value"]
    browser.ask("Target.closeTarget", targetId=target)
    sent = [event["params"] for event in browser.events if event["method"] == "Network.requestWillBeSent"]
    asked = [params["request"]["url"] for params in sent if not params["request"]["url"].startswith("data:")]
    told = [event["method"] for event in browser.events if event["method"] in TOLD]
    return Seen(*json.loads(found), asked, told)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_is_silent_asks_for_nothing_and_does_not_scroll_sideways(browser, page, width):
    found = seen(browser, page, width)
    assert found == Seen("Gaussian mixture over 12 sites · fedgrem", width, 0, [page.as_uri()], [])


def test_what_a_page_must_not_do_would_be_seen(browser, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text(
        "<meta name=viewport content='width=device-width'><div style='width:900px'>wide</div>"
        "<script>console.log('noise')</script><img src='http://elsewhere.invalid/picture.png'>"
    )
    found = seen(browser, path, 390)
    assert found.too_wide > 390
    assert "http://elsewhere.invalid/picture.png" in found.asked
    assert "Runtime.consoleAPICalled" in found.told
