"""The actions of a person with a mouse in the Dagster UI, one method for each. The tests in tests/defs/ui use them, and the pictures of
docs/.

Selectors are the words that a person reads.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from playwright.sync_api import Locator, Page

from tests.helpers.ui.running import RunningUi, wait_until

RUN_SECONDS = 120
BACKFILLS = "{ partitionBackfillsOrError { ... on PartitionBackfills { results { id status } } } }"


@dataclass
class Person:
    """`refused`: the requests that the server has answered with an error so far. `frames`: the messages that came over the websocket."""

    page: Page
    ui: RunningUi
    refused: list[str] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("response", lambda answer: self.refused.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
        self.page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: self.frames.append(str(frame))))

    def open(self, path: str, **query: str) -> None:
        """Open a page as a link within the UI does, because loading the scripts again takes seconds."""
        address = f"{self.ui.url}/{path}{'?' if query else ''}{urlencode(query)}"
        if self.page.url.startswith(self.ui.url):
            self.page.keyboard.press("Escape")  # a dialog
            self.page.evaluate("address => { history.pushState({}, '', address); dispatchEvent(new PopStateEvent('popstate')); }", address)
        else:
            self.page.goto(address)

    def see(self, text: str | re.Pattern[str], *, seconds: float = 60) -> Locator:
        found = self.page.get_by_text(text).first
        found.wait_for(timeout=1000 * seconds)
        return found

    def press(self, label: str) -> None:
        """Press the first button whose label begins with this text."""
        self.page.locator("button", has_text=re.compile(f"^{re.escape(label)}")).first.click()

    def choose(self, label: str) -> None:
        """Choose an entry of an open menu."""
        self.page.get_by_role("menuitem").get_by_text(label, exact=True).last.click()

    def open_graph(self, selection: str = "") -> None:
        """Open the global graph, or a selection of it, with every group expanded."""
        self._select(selection)
        self.page.mouse.click(700, 180, button="right")  # on the empty ground
        all_groups = self.page.get_by_text(re.compile("^(Expand|Collapse) all groups")).last  # the first is hidden
        all_groups.wait_for()
        if all_groups.inner_text().startswith("Expand"):
            all_groups.click()
        else:  # the UI remembers it
            self.page.keyboard.press("Escape")
        # The first is in the menu. The next is in a node, with its details, or with its name if the graph is small.
        self.page.get_by_text(re.compile("^(Automation|train_shards|meta_json)$")).nth(1).wait_for()

    def across(self, name: str) -> float:
        """Return the left edge of a group or an asset in the graph, in pixels."""
        boxes = [found.bounding_box() for found in self.page.locator("foreignObject").get_by_text(name, exact=True).all()]
        return min(box["x"] for box in boxes if box is not None)

    def materialize(self, asset: str) -> str:
        """Press the button of an asset without partitions. Return the id of the run."""
        self.open(f"assets/{asset}")
        return self.run_of(lambda: self.press("Materialize"))

    def open_launchpad(self, asset: str, partition: str) -> None:
        """Open the launchpad of an asset with partitions. The partition is chosen, and the editor is empty."""
        self.open(f"assets/{asset}")
        self.see("Materialize")
        self.page.locator("button", has_text=re.compile("^Materialize")).locator("xpath=../following-sibling::*//button").first.click()
        self.choose("Open launchpad")
        self._agree_to_siblings()
        self.see("No errors")  # the editor is loaded
        wait_until(lambda: self._is_offered(partition), seconds=60, what=f"{partition} is not offered")
        self.choose(partition)
        self.see(f"partition: {partition}")

    def configure(self, yaml: str) -> None:
        """Write a text into the editor of a launchpad."""
        self.page.locator(".CodeMirror").last.click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(yaml)

    def launch(self) -> str:
        """Launch a run from a launchpad. Return the id of the run, whose page opens."""
        return self.run_of(lambda: self.dialog().locator("button", has_text=re.compile("^Materialize$")).click())

    def open_partition(self, asset: str, partition: str) -> None:
        self.open(f"assets/{asset}", view="partitions", partition=partition)
        self.see("Latest materialization")

    def back_fill(self, selection: str) -> str:
        """Back-fill all partitions of the assets that are selected in the graph. Return the id of the backfill."""
        self._select(selection)
        self.press("Materialize all")
        self.see("All partitions")
        self.press("Launch backfill")
        wait_until(lambda: bool(self.backfills()), seconds=60, what="the click has started no backfill")
        return next(iter(self.backfills()))

    def backfills(self) -> dict[str, str]:
        """Return the status of each backfill by its id."""
        return {each["id"]: each["status"] for each in self.ui.graphql(BACKFILLS)["partitionBackfillsOrError"]["results"]}

    def run_of(self, act: Callable[[], None]) -> str:
        """Return the id of the run that an action starts."""
        before = {run["runId"] for run in self.ui.runs()}
        act()
        wait_until(lambda: len(self.ui.runs()) > len(before), seconds=60, what="no run has begun")
        return next(run["runId"] for run in self.ui.runs() if run["runId"] not in before)

    def watch(self, run: str, ending: str = "RUN_SUCCESS") -> None:
        """Watch the page of a run until the log shows the end of the run. The page is not loaded again, because the log comes while the run
        goes on.
        """
        self.open(f"runs/{run}")
        self.see(ending, seconds=RUN_SECONDS)

    def reload_definitions(self) -> None:
        self.open("asset-groups")
        self.press("Reload definitions")

    def _is_offered(self, partition: str) -> bool:
        """The UI forgets text that is typed before the partitions are loaded."""
        self.page.get_by_placeholder("Partition").fill(partition)
        self.page.wait_for_timeout(1_000)
        return self.page.get_by_role("menuitem").get_by_text(partition, exact=True).last.is_visible()

    def open_groups(self) -> None:
        """Open the graph of groups, in its first form."""
        self._select("")
        self.page.get_by_text("fetching statuses").first.wait_for(state="hidden")

    def _select(self, selection: str) -> None:
        self.open("asset-groups")
        self.see("tokenizer")
        if selection:
            self.page.locator(".CodeMirror").first.click()
            self.page.keyboard.type(selection)
            self.page.keyboard.press("Escape")  # the suggestions
            self.page.keyboard.press("Enter")
            self.page.wait_for_url(f"**{quote(selection)}**")
            self.page.wait_for_timeout(1_000)  # the layout is made anew

    def _agree_to_siblings(self) -> None:
        """Confirm the other assets. One pass makes all three assets of a data set, and the UI asks whether it may make the others too."""
        self.see("Materializing the current selection will also yield new materializations")
        self.press("Confirm")

    def execute_check(self, asset: str, check: str) -> str:
        """Execute a check by its button. Return the id of the run."""
        self.open_check(asset, check)
        return self.run_of(lambda: self.page.locator("button", has_text=re.compile("^Execute$")).click())

    def open_check(self, asset: str, check: str) -> None:
        self.open(f"assets/{asset}", view="checks", checkDetail=check)
        self.see("About")

    def entry(self, label: str) -> Locator:
        """Return the row of an entry of metadata."""
        return self.page.locator("tr", has=self.page.get_by_text(label, exact=True)).first

    def show(self, label: str) -> None:
        """Return the text that the UI shows in a dialog after a click on [Show ...] beside an entry of metadata."""
        self.entry(label).get_by_text(re.compile(r"^\[Show ")).click()
        self.dialog().wait_for()
        self.page.wait_for_timeout(500)  # it moves into place

    def dialog(self) -> Locator:
        return self.page.locator(".bp5-dialog").last

    def pictures(self) -> int:
        """Return the number of pictures in the open dialog, or 0 while one of them is not drawn."""
        images = self.dialog().locator("img")
        drawn = [images.nth(number).evaluate("image => image.complete && image.naturalWidth > 0") for number in range(images.count())]
        return len(drawn) if all(drawn) else 0
