"""A real browser opens the report: its policy stops nothing that the page needs, and all else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import attrs
import msgspec
import pytest
from chromium_pages import browsing
from synthetic_run import BREAKS, NS, build, violation, write_verdict

from harness.protocols.verdict import JudgedLimit, LimitState
from results.report.render import write_report

LIMIT_S = 60
SIZE = "1200,3000"


def opened(chromium: str, page: Path, scratch: Path) -> tuple[str, str]:
    """The page's elements after loading, and what the browser's console said."""
    done = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", f"--user-data-dir={scratch}", f"--window-size={SIZE}",
            "--enable-logging=stderr", "--dump-dom", page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, "\n".join(said)


@pytest.mark.browser
def test_the_policy_stops_nothing_of_the_report_and_everything_that_is_added(
    chromium: str, tmp_path: Path
) -> None:
    run = build(tmp_path / "run", duration_s=30.0, rate_per_s=100.0, breaks=BREAKS[:2])
    write_verdict(run, violation(txns=(10, 11)))
    page = write_report(run)
    mutated = tmp_path / "mutated.html"
    mutated.write_text(
        page.read_text().replace(
            "</body>",
            '<p style="color: red">a</p><script>document.title = "run"</script>'
            '<img src="http://198.18.0.1/x.png"></body>',
        )
    )

    content, said = opened(chromium, page, tmp_path / "a")
    changed, complaint = opened(chromium, mutated, tmp_path / "b")

    assert said == ""
    assert "lost write" in content
    for refused in ("inline style", "inline script", "198.18.0.1"):
        assert refused in complaint
    assert "<title>run</title>" not in changed


HEIGHT = "document.querySelector('.layer svg').getBoundingClientRect().height"
BAND = """(() => {
  const of = (name) => document.querySelector(name).getBoundingClientRect();
  const [band, layer] = [of(".band"), of(".layer")];
  return [(band.left - layer.left) / layer.width, band.width / layer.width, band.left, band.right];
})()"""


@pytest.mark.browser
def test_a_limit_leads_to_its_window_in_the_plot_which_is_stretched_along_its_time_alone(
    chromium: str, tmp_path: Path
) -> None:
    run = build(tmp_path / "run", duration_s=30.0, rate_per_s=100.0, breaks=BREAKS[:2])
    limit = JudgedLimit(
        name="promise.longest_gap_s", allowed=1.0, measured=1.5, state=LimitState.BROKEN,
        start_ns=10 * NS, end_ns=round(11.5 * NS),
    )  # fmt: skip
    write_verdict(run, msgspec.structs.replace(violation(txns=(10, 11)), limits=(limit,)))
    page = write_report(run)

    with browsing(chromium, tmp_path / "profile") as browser:
        browser.look(width=1000)
        browser.open(page.as_uri())
        whole = browser.run(HEIGHT)
        browser.run("document.querySelector('a.window').click()")
        left, width, from_px, to_px = browser.run(BAND)
        data = browser.run("JSON.parse(document.getElementById('plot-data').textContent)")
        zoomed = browser.run("document.querySelector('.layer').style.width")
        stretched = browser.run(HEIGHT)
        named = browser.run("document.querySelector('.axis').textContent")
        axis_px = browser.run("document.querySelector('.axis').getBoundingClientRect().left")
        browser.run("document.querySelector('[aria-label=\"show the whole run\"]').click()")
        again = browser.run(HEIGHT)
        hidden = browser.run("document.querySelector('.axis').hidden")

    across = data["right"] - data["left"]
    spans = data["end"] - data["start"]
    assert left == pytest.approx(data["left"] + (10 - data["start"]) / spans * across, abs=1e-3)
    assert width == pytest.approx(1.5 / spans * across, abs=1e-3)
    assert zoomed == "800%"
    assert 0 <= from_px < to_px <= 1000, "it is not in sight"
    assert to_px - from_px > 200
    assert stretched == pytest.approx(whole, abs=1)
    assert again == pytest.approx(whole, abs=1)
    assert "latency (ms)" in named
    assert 0 <= axis_px < 100, "the names of the axes are out of sight"
    assert hidden
    assert browser.errors == []


ROWS = """[...document.querySelectorAll("details")].map((each) => { each.open = true; }) &&
  [...document.querySelectorAll("table.stacked td:is(.steps, .told):not(:empty)")].map((cell) => {
    const [row, words] = [cell.parentElement, cell.getBoundingClientRect()];
    const box = row.parentElement.parentElement.parentElement.getBoundingClientRect();
    return [row.getBoundingClientRect().height - words.height, words.width / box.width,
      words.right - box.right];
  })"""
WIDE_PX, NARROW_PX = 1000, 400
FIGURES_PX = 90  # of a row's figures above its words: three lines, and the room between rows


@pytest.mark.browser
@pytest.mark.parametrize("script", [True, False])
def test_on_a_narrow_screen_the_words_of_a_row_are_below_its_figures_and_over_the_whole_width(
    chromium: str, tmp_path: Path, script: bool
) -> None:
    run = build(tmp_path / "run", duration_s=30.0, rate_per_s=100.0, breaks=BREAKS[:2])
    write_verdict(run, violation(txns=(10, 11)))
    page = write_report(run)
    if not script:
        page.write_text(re.sub("<script.*?</script>", "", page.read_text(), flags=re.DOTALL))

    with browsing(chromium, tmp_path / "profile") as browser:
        browser.look(width=NARROW_PX)
        browser.open(page.as_uri())
        narrow = browser.run(ROWS)
        beyond_px = browser.run("document.documentElement.scrollWidth - innerWidth")
        browser.look(width=WIDE_PX)
        browser.open(page.as_uri())
        wide = browser.run(ROWS)

    assert len(narrow) == len(wide) >= 20  # operations and events
    assert beyond_px <= 0
    for beside_px, share, out_px in narrow:
        assert beside_px <= FIGURES_PX, "a row is high for a reason other than its words"
        assert share > 0.9
        assert out_px <= 0, "words are out of sight"
    assert all(beside_px < 20 and share > 0.2 for beside_px, share, _ in wide), "no table any more"


@pytest.mark.browser
def test_a_filter_hides_rows_on_a_narrow_screen_as_well(chromium: str, tmp_path: Path) -> None:
    run = build(tmp_path / "run", duration_s=30.0, rate_per_s=100.0, breaks=BREAKS[:2])
    write_verdict(run, violation(txns=(10, 11)))
    page = write_report(run)
    shown = """[...document.querySelectorAll("table.stacked tbody tr")]
      .filter((row) => row.closest("details") && row.getClientRects().length).length"""

    with browsing(chromium, tmp_path / "profile") as browser:
        browser.look(width=NARROW_PX)
        browser.open(page.as_uri())
        browser.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        before = browser.run(shown)
        browser.run("""document.querySelectorAll("input[type=search]").forEach((input) => {
          input.value = "no such word"; input.dispatchEvent(new Event("input")); })""")
        after = browser.run(shown)

    assert before >= 8
    assert after == 0


STRIP = """(() => {
  const box = (each) => { const b = each.getBoundingClientRect();
    return [b.left, b.right, b.top, b.bottom]; };
  const svg = document.querySelector(".layer svg");
  const names = [...svg.querySelectorAll("text")]
    .filter((each) => each.textContent.match(/^\\d+ (kill|pause|partition)/));
  return [names.map((each) => [each.textContent, ...box(each)]),
    [...svg.querySelectorAll('[fill^="url(#"]')].map(box)];
})()"""


@pytest.mark.browser
def test_each_of_three_faults_is_named_in_the_plot_over_no_hatching_and_no_other_name(
    chromium: str, tmp_path: Path
) -> None:
    long, short = attrs.evolve(BREAKS[1], end_s=24.0), attrs.evolve(BREAKS[2], end_s=25.2)
    run = build(tmp_path / "run", duration_s=40.0, rate_per_s=50.0, breaks=(BREAKS[0], long, short))
    write_verdict(run, violation(txns=(10, 11)))
    page = write_report(run)

    with browsing(chromium, tmp_path / "profile") as browser:
        browser.look(width=1400)
        browser.open(page.as_uri())
        names, hatched = browser.run(STRIP)

    assert [name for name, *_ in names] == ["0 kill n3", "1 partition n1 n4", "2 kill n5"]
    assert len(hatched) >= 6
    boxes = [box for _, *box in names]
    for place, box in enumerate(boxes):
        for left, right, top, bottom in [*hatched, *boxes[:place]]:
            apart = right <= box[0] or box[1] <= left or bottom <= box[2] or box[3] <= top
            assert apart, (names[place], left, right)


@pytest.mark.browser
def test_words_below_a_row_of_a_table_that_is_wider_than_the_screen_are_in_sight(
    chromium: str, tmp_path: Path
) -> None:
    run = build(tmp_path / "run", duration_s=30.0, rate_per_s=100.0, breaks=BREAKS[:2])
    limit = JudgedLimit(
        name="promise.partition.recovered_within_s", allowed=2.0, measured=0.0,
        state=LimitState.KEPT, start_ns=10 * NS, end_ns=12 * NS, reason="of 14.1 a second " * 12,
    )  # fmt: skip
    write_verdict(run, msgspec.structs.replace(violation(txns=(10, 11)), limits=(limit,)))
    page = write_report(run)

    with browsing(chromium, tmp_path / "profile") as browser:
        browser.look(width=NARROW_PX)
        browser.open(page.as_uri())
        words = browser.run("""[...document.querySelectorAll("tr.detail .kept")].map((each) => {
          const box = each.getBoundingClientRect(); return [box.left, box.right]; })""")

    assert len(words) == 3  # of a limit, and of two faults
    assert all(left >= 0 and right <= NARROW_PX for left, right in words), words
