"""``firedrill serve``: what it shows, to whom, and what it lets nobody do; in a real Chromium."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from chromium_pages import Browser, browsing
from synthetic_run import build, valid, violation, write_verdict

from harness.campaigns.cell_table import CampaignTable, CellRow
from harness.exit_codes import Outcome
from harness.history.run_directory import RunDirectory
from harness.protocols.finding import Finding
from harness.protocols.verdict import Anomaly
from results.report.render import write_report
from results.store.run_entry import RecordedFinding, RunEntry
from results.web.app import anomalies_of
from results.web.background_analysis import Shelf
from results.web.search import parse

FIREDRILL = Path(sys.executable).with_name("firedrill")
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
RED, GREEN = "20261101-120000-night-0001", "20261102-120000-night-0002"
FOREIGN = "20261103-120000-foreign-0003"
LIMIT_S = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("web") / "runs"
    red = build(root / RED, duration_s=5.0, rate_per_s=50.0, breaks=())
    write_verdict(red, violation(txns=(1, 2)))
    write_report(red)
    green = build(root / GREEN, duration_s=5.0, rate_per_s=50.0, breaks=())
    write_verdict(green, valid())
    (green.root / "tags.json").write_text('["campaign=night","nightly"]')
    # One that somebody sent: whatever it says is text, and what it links to is not followed.
    foreign = RunDirectory(root / FOREIGN)
    shutil.copytree(red.root, foreign.root)
    text = foreign.plan.read_text().replace('name = "drill"', f"name = '''{HOSTILE}'''")
    foreign.plan.write_text(text.replace('name = "reference"', f"name = '''{HOSTILE}'''"))
    lost = Finding(text=HOSTILE, txns=(1,), keys=(7,))
    anomalies = {HOSTILE: Anomaly(count=1, examples=(lost,))}
    told = msgspec.structs.replace(violation(), anomalies=anomalies, reasons=(HOSTILE,))
    write_verdict(foreign, told)
    foreign.report.write_text(
        "<title>sent</title><script>document.title = 'ran';"
        "fetch('/runs').then(() => { document.title = 'read'; })</script>"
    )
    many = root / "campaigns" / "night-20261102"
    many.mkdir(parents=True)
    rows = [
        CellRow(axes={"workload": "bank"}, seed=n, key=str(n), outcome=Outcome.VALID)
        for n in range(20)
    ]
    rows[7] = CellRow(
        axes={"workload": HOSTILE},
        seed=7,
        key="7",
        outcome=Outcome.VIOLATION,
        anomalies={HOSTILE: 1},
        run=f"runs/{RED}",
    )
    table = CampaignTable(name="night", outcome=Outcome.VIOLATION, cells=tuple(rows))
    (many / "campaign.json").write_bytes(msgspec.json.encode(table))
    one = CellRow(axes={}, seed=1, key="1", outcome=Outcome.VALID, run=f"elsewhere/runs/{GREEN}")
    (root / "campaigns" / "night-20261101").mkdir()
    table = CampaignTable(name="night", outcome=Outcome.VALID, cells=(one,))
    path = root / "campaigns" / "night-20261101" / "campaign.json"
    path.write_bytes(msgspec.json.encode(table))
    return root


@pytest.fixture(scope="module")
def port(store: Path) -> Iterator[int]:
    process = subprocess.Popen(
        [FIREDRILL, "serve", "--port", "0", "--runs-dir", str(store)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\n", line)
    assert found is not None, line
    yield int(found[1])
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 0


def asked(
    port: int, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request(
            method, path, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        answer = connection.getresponse()
        told = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, told, answer.read().decode()
    finally:
        connection.close()


def worked_out(port: int, path: str) -> str:
    """The page behind the one that says that it is being worked out."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        status, _, page = asked(port, path)
        assert status == 200
        if "it is being worked out" not in page:
            return page
        assert 'http-equiv="refresh"' in page
        assert time.monotonic() < end_s


PAGES = [
    "/runs",
    "/runs?q=violation&sort=longest_gap_s&dir=up&page=1",
    f"/runs/{RED}",
    f"/runs/{FOREIGN}",
    "/campaigns",
    "/campaigns/night-20261102",
    "/compare",
    "/compare?new=night-20261102&base=night-20261101",
    f"/compare?new={RED}&base=begun%3E%3D2026-11-02&across=setting",
    "/compare?new=../../etc&base=night-20261101&where=%3Cimg%3E",
    "/trend",
    "/trend?where=system%3Dreference",
    "/trend?where=nonsense%3Cimg%3E",
    "/findings",
]


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_whole_and_takes_no_text_for_an_element(path: str, port: int) -> None:
    status, headers, page = asked(port, path)

    assert status == 200
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert "<script>document" not in page
    assert "<img" not in page
    assert headers["content-security-policy"].startswith("default-src 'none'; style-src 'self'")
    assert headers["x-content-type-options"] == "nosniff"
    assert not [name for name in headers if name.startswith("access-control")]
    # All its links lead somewhere.
    for link in {*re.findall(r'(?:href|src)="(/[^"]*)"', page)}:
        assert asked(port, link.replace("&amp;", "&"))[0] == 200, link


def test_runs_are_searched_sorted_and_filtered(port: int) -> None:
    def runs(query: str) -> list[str]:
        return re.findall(r'<a href="/runs/([^"/]+)">', asked(port, f"/runs?{query}")[2])

    assert runs("") == [FOREIGN, GREEN, RED]
    assert runs("dir=up") == [RED, GREEN, FOREIGN]
    assert runs("q=outcome%3Dvalid") == [GREEN]
    assert runs("q=outcome%3Dviolation+reference") == [RED]
    assert runs("q=NIGHTLY") == [GREEN]
    assert runs("q=tag%3Dcampaign%3Dnight") == [GREEN]
    assert runs("q=nothing-has-this") == []
    assert runs("page=9") == []
    assert "is a number" in asked(port, "/runs?q=seed%3Dx")[2]
    assert runs("sort=nonsense&dir=nonsense&page=nonsense") == [FOREIGN, GREEN, RED]


def test_two_campaigns_are_compared(port: int) -> None:
    page = worked_out(port, "/compare?new=night-20261102&base=night-20261101")
    turned = worked_out(port, "/compare?new=night-20261101&base=night-20261102")

    assert "new finding: lost-write" in page
    assert ">gone<" in turned
    assert "new finding" not in turned


def test_sides_are_named_as_by_the_command_and_within_the_store(port: int, store: Path) -> None:
    page = worked_out(port, f"/compare?new=outcome%3Dviolation,system%3Dreference&base={GREEN}")
    days = worked_out(port, "/compare?new=2026-11-02&base=2026-11-01&across=setting")
    narrowed = worked_out(port, "/compare?new=2026-11-01..&base=2026-11-01..&where=outcome%3Dvalid")

    assert "new finding: lost-write" in page
    assert f'<a href="/runs/{RED}">' in page
    assert "(1 runs) with" in days
    assert narrowed.count("(1 runs)") == 2
    for other in ("none", "..%2fcampaigns", quote(str(store), safe=""), "latest"):
        told = worked_out(port, f"/compare?new={other}&base={GREEN}")
        assert "expected a run, a campaign, days" in told
    assert "no such runs" in worked_out(port, f"/compare?new=release%3D9&base={GREEN}")
    assert "is a number" in worked_out(port, f"/compare?new=seed%3Dx&base={GREEN}")


def test_a_trend_is_of_the_runs_that_are_asked_for(port: int) -> None:
    every = worked_out(port, "/trend")
    green = worked_out(port, "/trend?where=outcome%3Dvalid")

    assert "3 runs from 2026-11-01 to 2026-11-03" in every
    assert "lost-write" in every
    assert f'<a href="/runs/{RED}">' in every
    assert "1 runs from 2026-11-02" in green
    assert "lost-write" not in green
    assert "expected conditions" in worked_out(port, "/trend?where=nonsense")
    assert "there is no trend of nothing" in worked_out(port, "/trend?where=outcome%3Dunknown")


def test_pages_lead_to_what_they_may_be_compared_with(port: int) -> None:
    for path in (f"/runs/{RED}", "/campaigns/night-20261102"):
        page = asked(port, path)[2]
        for link in re.findall(r'href="(/(?:compare|trend)\?[^"]+)"', page):
            told = worked_out(port, link.replace("&amp;", "&"))
            assert "expected" not in told, link
    links = re.findall(r'href="(/findings/[^"]+)"', asked(port, f"/runs/{RED}")[2])
    page = asked(port, links[0])[2]
    assert "what else changed since it was first seen" in page
    assert "trend of reference" in page


def test_an_answer_is_kept_until_runs_change_and_shown_meanwhile() -> None:
    async def story() -> list[object]:
        shelf, told = Shelf(), []
        go = threading.Event()

        def slow() -> str:
            go.wait(LIMIT_S)
            return "old"

        told.append(await shelf.answer("key", "1", slow))
        go.set()
        while (found := await shelf.answer("key", "1", slow)) is None:
            pass
        told.append(found.value)
        told.append(getattr(await shelf.answer("key", "2", lambda: "new"), "value", None))
        while (found := await shelf.answer("key", "2", lambda: "never")) and found.value == "old":
            pass
        told.append(found and found.value)
        return told

    assert asyncio.run(story()) == [None, "old", "old", "new"]


def test_a_row_names_a_few_anomalies_of_many() -> None:
    def of(count: int) -> str:
        findings = tuple(
            RecordedFinding(fingerprint=f"{n}", anomaly=f"a{n}", fault="", role="", count=1)
            for n in range(count)
        )
        return anomalies_of(RunEntry(run="r", state="sealed", findings=findings))

    assert of(0) == ""
    assert of(5) == "a0, a1, a2, a3, a4"
    assert of(14) == "a0, a1, a2, a3 and 10 more"


def test_what_is_typed_is_conditions_and_words() -> None:
    found = parse("outcome=violation kill a=b begun>=2026-11 x'y", "seed", "up", "3")

    assert [(c.name, c.operator, c.value) for c in found.conditions] == [
        ("outcome", "=", "violation"),
        ("begun", ">=", "2026-11"),
    ]
    assert found.words == ("kill", "a=b", "x'y")
    assert (found.order, found.descending, found.page) == ("seed", False, 3)
    assert parse("a", "seed; DROP", "", "-1").order == "run"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", ""]
)
def test_a_name_that_is_not_the_loopbacks_is_refused(host: str, port: int) -> None:
    status, _, text = asked(port, "/runs", Host=host)

    assert status == 421
    assert RED not in text
    assert asked(port, "/runs", Host=f"localhost:{port}")[0] == 200


def test_another_site_reads_nothing_and_nothing_can_be_changed(port: int) -> None:
    cross = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}
    assert asked(port, "/runs", **cross)[0] == 403
    assert asked(port, "/runs", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        status, headers, _ = asked(port, "/runs", method, Origin="https://evil.example")
        assert status == 405
        assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "path",
    [
        "/runs/..",
        "/runs/../../etc/passwd",
        "/runs/..%2f..%2fetc%2fpasswd",
        f"/runs/{RED}/../../../etc/passwd",
        f"/runs/{RED}/manifest.json",
        f"/runs/{RED}%00",
        "/runs/20261101-120000-night-9999",
        "/campaigns/..",
        "/campaigns/%2e%2e%2fcampaigns",
        "/static/../app.py",
        "/static/report.css",
        "/findings/none",
        "/latest",
    ],
)
def test_nothing_else_is_served(path: str, port: int) -> None:
    status, _, text = asked(port, path)

    assert status == 404
    assert "root:" not in text


def test_links_in_a_store_are_not_followed(store: Path, port: int, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret words")
    run = store / GREEN
    (run / "report.html").symlink_to(secret)
    (store / "campaigns" / "linked").symlink_to(store / "campaigns" / "night-20261102")
    other = store / "20261104-120000-linked-0004"
    other.symlink_to(store / RED)
    try:
        for path in (f"/runs/{GREEN}/report.html", f"/runs/{other.name}", "/campaigns/linked"):
            status, _, text = asked(port, path)
            assert status == 404, path
            assert "secret words" not in text
        # A directory with a link in it is shown for what it is, without its content.
        assert "secret words" not in asked(port, f"/runs/{GREEN}/verdict.json")[2]
    finally:
        (run / "report.html").unlink()
        (store / "campaigns" / "linked").unlink()
        other.unlink()


def test_an_address_that_is_too_long_is_refused(port: int) -> None:
    assert asked(port, f"/runs?q={'a' * 9000}")[0] == 414
    assert asked(port, f"/runs?q={quote(chr(0) + chr(0x202E))}")[0] == 200


def test_it_listens_on_the_loopback_alone(port: int) -> None:
    """What else listens on this port listens on 127.0.0.1."""
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    listening = [line.split()[1] for line in table if line.split()[3] == "0A"]

    assert [each for each in listening if each.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_a_port_that_is_taken_is_refused_by_name(port: int, store: Path) -> None:
    done = subprocess.run(
        [FIREDRILL, "serve", "--port", str(port), "--runs-dir", str(store)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert done.returncode == 254
    assert f"--port {port}" in done.stderr


@pytest.fixture(scope="module")
def browser(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(chromium, tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.mark.browser
def test_in_a_browser_every_page_runs_its_own_script_alone(browser: Browser, port: int) -> None:
    browser.errors.clear()
    for path in PAGES:
        browser.open(f"http://127.0.0.1:{port}{path}")
        assert browser.run("document.title").startswith("firedrill: ")
        # The style sheet is there, and nothing was refused.
        assert browser.run("getComputedStyle(document.querySelector('.bar')).display") == "flex"
    assert browser.errors == []


@pytest.mark.browser
def test_a_report_that_somebody_sent_reads_no_other_page(browser: Browser, port: int) -> None:
    browser.open(f"http://127.0.0.1:{port}/runs/{FOREIGN}/report.html")

    # It runs for itself, with an origin of its own, and may connect to nothing.
    browser.until("document.title !== 'sent'")
    assert browser.run("document.title") == "ran"
    assert browser.run("self.origin") == "null"
    refused = browser.run("fetch('/runs').then(() => 'read', () => 'refused')")
    assert refused == "refused"


@pytest.mark.browser
def test_it_is_used_by_keys_alone(browser: Browser, port: int) -> None:
    browser.look(width=1200)
    browser.open(f"http://127.0.0.1:{port}/campaigns")

    browser.press("g")
    browser.press("r")
    browser.wait("Page.loadEventFired")
    browser.press("/")
    assert browser.run("document.activeElement.id") == "q"
    browser.type("outcome=violation reference")
    browser.press("Enter")
    browser.wait("Page.loadEventFired")
    browser.press("j")
    assert browser.run("document.activeElement.textContent") == RED
    browser.press("Enter")
    browser.wait("Page.loadEventFired")

    assert browser.run("location.pathname") == f"/runs/{RED}"
    browser.open(f"http://127.0.0.1:{port}/campaigns/night-20261102")
    browser.press("/")
    browser.type("violation")
    assert browser.run("document.querySelectorAll('tbody tr:not([hidden])').length") == 1
    browser.press("Escape")
    assert browser.run("document.activeElement === document.body")


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1400])
def test_pages_fit_narrow_and_wide_screens_light_and_dark(
    width: int, dark: bool, browser: Browser, port: int
) -> None:
    browser.look(width=width, dark=dark)
    for path in PAGES:
        browser.open(f"http://127.0.0.1:{port}{path}")
        # Tables scroll by themselves; the page does not.
        assert browser.run("document.documentElement.scrollWidth") <= width, path
        paper = browser.run("getComputedStyle(document.documentElement).backgroundColor")
        light = sum(map(int, re.findall(r"\d+", paper)[:3])) > 384
        assert light != dark
        if pictures := os.environ.get("FIREDRILL_PICTURES"):
            name = re.sub(r"\W+", "-", path).strip("-")
            browser.picture(Path(pictures) / f"{name}-{width}-{'dark' if dark else 'light'}.png")


def test_the_json_of_a_verdict_is_what_is_stored(store: Path, port: int) -> None:
    _, headers, text = asked(port, f"/runs/{RED}/verdict.json")

    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert json.loads(text) == json.loads((store / RED / "analysis/verdict.json").read_bytes())
