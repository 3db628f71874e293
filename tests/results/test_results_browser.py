"""A real browser opens the report: its policy stops nothing that the page needs, and all else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from synthetic_run import BREAKS, build, violation, write_verdict

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
