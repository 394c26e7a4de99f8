"""The flame graph page in a real Chromium. Every expected figure is summed here from the list of stacks."""

from __future__ import annotations

import re
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import reports_helpers as helpers
from playwright.sync_api import Browser, Page, sync_playwright

from perfscope.merge.calltree import CallTree
from perfscope.reports import flame
from perfscope.reports.units import printable

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-component-update",
    "--disable-background-networking",
    "--no-first-run",
)
WEIGHTS: dict[str, Callable[[helpers.Stack], int]] = {
    "wall": lambda s: s.wall,
    "cpu": lambda s: s.cpu,
    "off-cpu": lambda s: s.wall - s.cpu,
    "samples": lambda s: s.samples,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


class Opened:
    """A page with one flame graph in it, and everything that it said or asked for."""

    def __init__(self, browser: Browser, folder: Path, tree: CallTree, **context: object) -> None:
        self.file = folder / "flame.html"
        self.file.write_text(flame.page(tree), encoding="utf-8")
        settings = {"viewport": {"width": 1280, "height": 800}, **context}
        self.page: Page = browser.new_context(**settings).new_page()  # type: ignore[arg-type]  # by name
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(self.file.as_uri())
        self.page.locator("html[data-state]").wait_for(state="attached")
        assert self.page.locator("html").get_attribute("data-state") == "drawn", self.said

    def get(self, name: str) -> object:
        return self.page.evaluate(f"perfscope.{name}")

    def frames(self) -> list[dict]:
        found: list[dict] = self.page.evaluate("perfscope.frames")
        return found

    def frame(self, *path: str) -> dict:
        return next(f for f in self.frames() if f["path"] == list(path))

    def click(self, *path: str) -> None:
        at = self.frame(*path)
        self.page.locator("#flame").click(position={"x": at["x"] + at["width"] / 2, "y": at["y"] + 10})

    def hover(self, *path: str) -> str:
        at = self.frame(*path)
        self.page.locator("#flame").hover(position={"x": at["x"] + at["width"] / 2, "y": at["y"] + 10})
        return self.page.locator("#tooltip").inner_text()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opened]:
    one = Opened(browser, tmp_path, helpers.build(helpers.server(), notes=["py-spy ±0.6 ms", "lost 12 of 1,204,331"]))
    yield one
    one.page.context.close()
    assert one.said == []
    assert one.requests == [one.file.as_uri()]


def names(stack: helpers.Stack) -> tuple[str, ...]:
    return tuple(printable(f.label) for f in stack.frames)


def sums(
    stacks: Sequence[helpers.Stack],
    weight: str = "wall",
    path: Callable[[helpers.Stack], tuple[str, ...]] = names,
) -> dict[tuple[str, ...], int]:
    """Every prefix of every path -> its total."""
    totals: dict[tuple[str, ...], int] = defaultdict(int)
    for stack in stacks:
        full = path(stack)
        for depth in range(len(full) + 1):
            totals[full[:depth]] += WEIGHTS[weight](stack)
    return {key: value for key, value in totals.items() if value}


def drawn(one: Opened) -> dict[tuple[str, ...], int]:
    """Path of names -> value of all frames drawn there: more than one if only their layers differ."""
    totals: dict[tuple[str, ...], int] = defaultdict(int)
    for found in one.frames():
        totals[tuple(found["path"])] += found["value"]
    return dict(totals)


def test_every_frame_has_its_exact_value_and_width(opened: Opened) -> None:
    expected = sums(helpers.server())
    assert drawn(opened) == expected
    width = opened.page.evaluate("document.getElementById('scroller').clientWidth")
    for frame in opened.frames():
        assert frame["width"] == pytest.approx(width * frame["value"] / expected[()], abs=1e-6)


@pytest.mark.parametrize("weight", ["cpu", "off-cpu", "samples"])
def test_the_weight_switch_shows_the_other_weights(opened: Opened, weight: str) -> None:
    opened.page.get_by_role("radio", name=weight, exact=True).click()
    assert opened.get("weight") == weight
    assert drawn(opened) == sums(helpers.server(), weight)


def test_inverted_starts_at_what_the_time_ended_in(opened: Opened) -> None:
    opened.page.get_by_role("radio", name="Inverted").click()
    assert drawn(opened) == sums(helpers.server(), path=lambda s: names(s)[::-1])


def test_merged_threads_are_one_tree(opened: Opened) -> None:
    opened.page.locator("#threads-open").click()
    opened.page.get_by_label("Merge threads").check()
    assert drawn(opened) == sums(helpers.server(), path=lambda s: names(s)[2:])
    opened.page.keyboard.press("Escape")
    opened.page.get_by_role("radio", name="Inverted").click()
    assert drawn(opened) == sums(helpers.server(), path=lambda s: names(s)[:1:-1])


def test_flame_turns_the_picture_over_and_keeps_the_figures(opened: Opened) -> None:
    down = {tuple(f["path"]): f["y"] for f in opened.frames()}
    opened.page.locator("#flame").focus()
    opened.page.keyboard.press("i")
    assert opened.get("direction") == "flame"
    up = {tuple(f["path"]): f["y"] for f in opened.frames()}
    order = sorted(down, key=lambda path: down[path])
    assert sorted(up, key=lambda path: -up[path]) == order
    assert drawn(opened) == sums(helpers.server())


@pytest.mark.parametrize(
    ("text", "regex"),
    [("forward", False), ("FORW", False), ("^(forward|encode)$", True), ("model.py", False), ("zzz", False)],
)
def test_search_counts_nested_matches_once(opened: Opened, text: str, regex: bool) -> None:
    if regex:
        opened.page.get_by_role("button", name="Regular expression").click()
    opened.page.locator("#flame").focus()
    opened.page.keyboard.press("/")
    opened.page.keyboard.type(text)
    pattern = re.compile(text if regex else re.escape(text), re.IGNORECASE)

    def hit(stack: helpers.Stack) -> bool:
        return any(pattern.search(t) for f in stack.frames for t in (f.label, f.file, f.module) if t)

    matched, total = sum(s.wall for s in helpers.server() if hit(s)), sum(s.wall for s in helpers.server())
    assert opened.get("matched.all") == matched
    words = opened.page.locator("#search-result").inner_text()
    assert words.startswith(f"matched {100 * matched / total:.1f} %" if matched else "no match")


def test_a_broken_expression_is_said_and_harms_nothing(opened: Opened) -> None:
    opened.page.get_by_role("button", name="Regular expression").click()
    opened.page.locator("#search").fill("(")
    assert opened.page.locator("#search").get_attribute("aria-invalid") == "true"
    assert opened.page.locator("#search-result").inner_text() == "not a valid expression"
    opened.page.locator("#search").fill("(a)?")
    assert opened.page.locator("#search").get_attribute("aria-invalid") == "false"


def test_click_zooms_and_escape_goes_back(opened: Opened) -> None:
    process, thread = "python serve.py (4121)", "worker-1"
    opened.click(process, thread, "run", "handle")
    assert opened.get("zoom") == [process, thread, "run", "handle"]
    width = opened.page.evaluate("document.getElementById('scroller').clientWidth")
    assert opened.frame(process, thread, "run", "handle")["width"] == width
    expected = {k: v for k, v in sums(helpers.server()).items() if k[:4] == (process, thread, "run", "handle")}
    assert {k: v for k, v in drawn(opened).items() if len(k) >= 4} == expected

    opened.page.locator("#search").fill("encode")
    inside = sum(s.wall for s in helpers.server() if "worker-1" in names(s) and "encode" in names(s))
    assert opened.get("matched.inside") == inside
    share = 100 * inside / expected[process, thread, "run", "handle"]
    assert f"({share:.1f} % of the zoomed frame)" in opened.page.locator("#search-result").inner_text()

    opened.click(process, thread, "run", "handle", "forward")
    opened.page.keyboard.press("Escape")
    assert opened.get("zoom") == [process, thread, "run", "handle"]
    opened.page.keyboard.press("Backspace")
    assert opened.get("zoom") == []


def test_the_path_above_the_picture_leads_back(opened: Opened) -> None:
    opened.click("python serve.py (4121)", "worker-1", "run")
    crumbs = opened.page.locator("#crumbs button")
    assert crumbs.all_inner_texts() == ["all", "python serve.py (4121)", "worker-1", "run"]
    crumbs.nth(1).click()
    assert opened.get("zoom") == ["python serve.py (4121)"]


def test_a_zoom_stays_when_the_weight_changes(opened: Opened) -> None:
    path = ("python serve.py (4121)", "worker-1", "run", "handle")
    opened.click(*path)
    opened.page.get_by_role("radio", name="off-cpu").click()
    assert opened.get("zoom") == list(path)
    assert opened.frame(*path)["value"] == sums(helpers.server(), "off-cpu")[path]


def test_the_pattern_and_the_boxes_choose_threads(opened: Opened) -> None:
    opened.page.locator("#threads-open").click()
    opened.page.keyboard.type("worker-*")
    workers = [s for s in helpers.server() if s.frames[1].label.startswith("worker-")]
    assert drawn(opened) == sums(workers)
    opened.page.locator("#thread-list label", has_text="worker-2").locator("input").uncheck()
    assert drawn(opened) == sums([s for s in workers if s.frames[1].label != "worker-2"])
    assert opened.page.locator("#threads-open").inner_text().startswith("2 of 5 threads")
    opened.page.locator("#thread-pattern").fill("pool")
    assert drawn(opened) == sums([s for s in helpers.server() if "pool" in s.frames[1].label])
    opened.page.locator("#thread-pattern").fill("")
    opened.page.locator("#threads-none").click()
    assert opened.get("total") == 0
    assert opened.page.locator("#empty").is_visible()
    opened.page.locator("#threads-all").click()
    assert drawn(opened) == sums(helpers.server())


def test_the_thread_list_shows_shares(opened: Opened) -> None:
    opened.page.locator("#threads-open").click()
    total = sum(s.wall for s in helpers.server())
    for thread in ("worker-0", "http-pool-1"):
        own = sum(s.wall for s in helpers.server() if s.frames[1].label == thread)
        row = opened.page.locator("#thread-list label", has_text=thread)
        assert row.locator(".share").inner_text() == f"{100 * own / total:.1f} %"


def test_the_time_range_by_keyboard(opened: Opened) -> None:
    opened.page.get_by_role("slider", name="Start of the time range").focus()
    for _ in range(3):
        opened.page.keyboard.press("ArrowRight")
    opened.page.get_by_role("slider", name="End of the time range").focus()
    opened.page.keyboard.press("ArrowLeft")
    assert drawn(opened) == sums([s for s in helpers.server() if 3 <= s.bucket < 9])
    assert opened.page.locator("#time-text").inner_text() == "Showing 0.300 s to 0.900 s of 1.000 s"
    opened.page.get_by_role("button", name="Whole recording").click()
    assert drawn(opened) == sums(helpers.server())


def test_the_time_range_by_dragging(opened: Opened) -> None:
    box = opened.page.locator("#strip").bounding_box()
    assert box is not None
    x = [box["x"] + box["width"] * share for share in (0.23, 0.58)]
    opened.page.mouse.move(x[0], box["y"] + 20)
    opened.page.mouse.down()
    opened.page.mouse.move(x[1], box["y"] + 20, steps=4)
    opened.page.mouse.up()
    assert drawn(opened) == sums([s for s in helpers.server() if 2 <= s.bucket < 6])


def test_arrow_keys_move_and_the_frame_is_announced(opened: Opened) -> None:
    opened.page.locator("#flame").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        opened.page.keyboard.press(key)
    first, second = sorted((f for f in opened.frames() if len(f["path"]) == 2), key=lambda f: f["x"])[:2]
    assert opened.get("focus.path") == second["path"]
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("ArrowDown")
    path = [*second["path"], "run", "handle"]
    assert opened.get("focus.path") == path
    said = opened.page.locator("#detail[aria-live=polite]").inner_text()
    totals = sums(helpers.server())
    share = 100 * totals[tuple(path)] / totals[()]
    assert "handle" in said
    assert f"{share:.1f} % of all" in said
    assert "serve.py" in said
    opened.page.keyboard.press("ArrowUp")
    opened.page.keyboard.press("ArrowUp")
    opened.page.keyboard.press("ArrowLeft")
    assert opened.get("focus.path") == first["path"]
    opened.page.keyboard.press("Enter")
    assert opened.get("zoom") == first["path"]
    opened.page.keyboard.press("Home")
    assert opened.get("zoom") == []


def test_n_goes_from_match_to_match(opened: Opened) -> None:
    opened.page.locator("#search").fill("cblas_sgemm")
    opened.page.keyboard.press("Enter")
    seen = [opened.get("focus.path")]
    for key in ("n", "n", "n", "N"):
        opened.page.keyboard.press(key)
        seen.append(opened.get("focus.path"))
    assert all(path[-1] == "cblas_sgemm" for path in seen)
    assert seen[3] == seen[0]
    assert seen[4] == seen[2]
    assert len({tuple(path) for path in seen}) == 3


def test_the_tooltip_names_place_layer_and_shares(opened: Opened) -> None:
    path = ("python serve.py (4121)", "worker-0", "run", "handle", "encode")
    text = opened.hover(*path)
    totals = sums(helpers.server())
    own = sum(s.wall for s in helpers.server() if names(s) == path)
    assert "encode" in text
    assert "python" in text
    assert re.search(r"tokenizer\.py(:\d+)?", text)
    assert f"{100 * totals[path] / totals[()]:.1f} %" in text
    assert f"{100 * totals[path] / totals[path[:-1]]:.1f} %" in text
    assert f"{own / 1e6:.1f} ms" in text


def test_clock_errors_and_losses_stand_in_sight(opened: Opened) -> None:
    assert opened.page.locator("#notes li").all_inner_texts() == ["py-spy ±0.6 ms", "lost 12 of 1,204,331"]
    assert opened.page.locator("#notes").is_visible()


def test_the_legend_gives_the_share_of_each_layer_and_state(opened: Opened) -> None:
    shares: dict[str, int] = defaultdict(int)
    for stack in helpers.server():
        leaf = stack.frames[-1]
        shares[leaf.label.strip("[]") if leaf.layer == "state" else leaf.layer] += stack.wall
    total = sum(shares.values())
    assert set(shares) == {"python", "java", "native", "kernel", "waiting: GIL", "sleeping"}
    assert opened.page.locator("#legend li").count() == len(shares)
    for name, value in shares.items():
        entry = opened.page.locator("#legend li", has_text=name)
        assert entry.locator("small").inner_text() == f"{100 * value / total:.1f} %"


def test_all_controls_have_names(opened: Opened) -> None:
    opened.page.locator("#threads-open").click()
    session = opened.page.context.new_cdp_session(opened.page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "checkbox", "radio", "radiogroup", "searchbox", "textbox", "slider", "application", "toolbar"}
    found = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in roles
    ]
    assert {role for role, _ in found} >= roles - {"textbox"}
    assert [role for role, name in found if not name.strip()] == []


def test_help_opens_with_a_key_and_closes_with_escape(opened: Opened) -> None:
    opened.page.keyboard.press("?")
    assert opened.page.get_by_role("dialog").is_visible()
    opened.page.keyboard.press("Escape")
    assert not opened.page.get_by_role("dialog").is_visible()


def test_the_page_can_not_reach_a_network(opened: Opened) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        outcome = opened.page.evaluate(
            """(url) => new Promise((done) => {
                const image = new Image();
                image.onload = () => done("loaded");
                image.onerror = () => fetch(url).then(() => done("fetched"), () => done("refused"));
                image.src = url + "x.png";
            })""",
            url,
        )
        assert outcome == "refused"
        with pytest.raises(BlockingIOError):
            server.accept()
    assert opened.said
    assert all("Content Security Policy" in line for line in opened.said)
    opened.said.clear()
    opened.requests[1:] = []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_readable(browser: Browser, tmp_path: Path, scheme: str) -> None:
    one = Opened(browser, tmp_path, helpers.build(helpers.server()), color_scheme=scheme)
    assert one.page.evaluate("document.documentElement.dataset.theme") == scheme

    def luminance(name: str) -> float:
        value = one.page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')").strip()
        parts = [int(value[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def contrast(a: str, b: str) -> float:
        low, high = sorted((luminance(a), luminance(b)))
        return (high + 0.05) / (low + 0.05)

    pairs = [("ink-soft", layer) for layer in ("java", "python", "native", "kernel", "gpu")]
    pairs += [("ink-soft", f"state-{name}") for name in flame._STATES.values()]
    pairs += [("ink", "paper"), ("ink", "process"), ("ink", "thread"), ("muted", "paper"), ("warn", "warn-paper")]
    pairs += [("accent-ink", "accent"), ("match", "paper"), ("muted", "panel")]
    assert {pair: ratio for pair in pairs if (ratio := contrast(*pair)) < 4.5} == {}
    other = {"light": "dark", "dark": "light"}[scheme]
    for _ in range(2):
        one.page.keyboard.press("t")
        if one.page.evaluate("document.documentElement.dataset.theme") == other:
            break
    assert one.page.evaluate("document.documentElement.dataset.theme") == other
    one.page.context.close()
    assert one.said == []


def test_odd_names_are_shown_and_do_nothing(browser: Browser, tmp_path: Path) -> None:
    tree = helpers.build(
        helpers.odd(), title="odd </title><script>alert(1)</script> \x1b\u202e\udcff", notes=["<b>\x1b"]
    )
    one = Opened(browser, tmp_path, tree, viewport={"width": 2400, "height": 900})
    assert drawn(one) == sums(helpers.odd())
    assert sum(len(f["path"]) == 3 for f in one.frames()) == 6 * len(helpers.ODD_NAMES)
    shown = {f["path"][0] for f in one.frames() if f["path"]}
    assert shown == {printable(name) for name in helpers.ODD_NAMES}
    assert "odd </title><script>alert(1)</script> \\x1b\\u202e\\udcff" in one.page.title()
    assert one.page.locator("#notes li").inner_text() == "<b>\\x1b"
    assert one.page.evaluate("document.scripts.length") == 1
    for path in [p for p in drawn(one) if len(p) == 3]:
        one.hover(*path)
        assert one.page.locator("#tooltip .what").text_content() == path[-1]
    one.page.context.close()
    assert one.said == []


def test_a_hundred_thousand_stacks_open_whole(browser: Browser, tmp_path: Path) -> None:
    tree = helpers.many()
    one = Opened(browser, tmp_path, tree)
    assert int((tree.weights["wall"] > 0).sum()) >= 100_000
    assert one.file.stat().st_size < 5_000_000
    assert one.get("total") == int(tree.weights["wall"].sum())
    widths = [f["width"] for f in one.frames()]
    assert min(widths) >= 0.5
    totals = tree.totals("wall")
    threads = {tree.frames[tree.frame[n]].label: int(totals[n]) for n in range(2, 18)}
    assert {f["path"][1]: f["value"] for f in one.frames() if len(f["path"]) == 2}.items() <= threads.items()
    one.page.locator("#search").fill("Class42.")
    covered = 0
    hit = [False] * len(tree.parent)
    for node in range(1, len(tree.parent)):
        hit[node] = hit[tree.parent[node]] or "Class42." in tree.frames[tree.frame[node]].label
        covered += int(tree.weights["wall"][node]) if hit[node] else 0
    assert one.get("matched.all") == covered
    one.page.get_by_role("radio", name="Inverted").click()
    assert one.get("total") == int(tree.weights["wall"].sum())
    one.page.context.close()
    assert one.said == []


@pytest.mark.parametrize("width", [360, 760])
def test_a_narrow_window_needs_no_sideways_scrolling(browser: Browser, tmp_path: Path, width: int) -> None:
    one = Opened(browser, tmp_path, helpers.build(helpers.server()), viewport={"width": width, "height": 640})
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    one.page.set_viewport_size({"width": width * 2, "height": 700})
    one.page.evaluate(
        """() => new Promise((done) => {
            const scroller = document.getElementById("scroller");
            const look = () =>
                perfscope.frames[0].width === scroller.clientWidth ? done() : requestAnimationFrame(look);
            look();
        })"""
    )
    one.page.context.close()
    assert one.said == []


def test_a_dense_screen_gets_as_many_pixels(browser: Browser, tmp_path: Path) -> None:
    one = Opened(browser, tmp_path, helpers.build(helpers.server()), device_scale_factor=2)
    for canvas in ("#flame", "#strip-canvas"):
        inside, outside = one.page.locator(canvas).evaluate("c => [c.width, c.getBoundingClientRect().width]")
        assert inside == 2 * outside
    one.page.context.close()
    assert one.said == []


def test_what_is_too_narrow_to_draw_is_counted(browser: Browser, tmp_path: Path) -> None:
    base = (helpers.frame("process", "p"), helpers.frame("thread", "t"))
    wide = helpers.Stack((*base, helpers.frame("python", "wide")), 10**9, 10**9, 1)
    tiny = [helpers.Stack((*base, helpers.frame("python", f"tiny {i}")), 100_000, 0, 1) for i in range(500)]
    one = Opened(browser, tmp_path, helpers.build([wide, *tiny]))
    assert len(one.frames()) == 4
    at = one.frame("p", "t", "wide")
    one.page.locator("#flame").hover(position={"x": at["width"] + 20, "y": at["y"] + 10})
    text = one.page.locator("#tooltip").inner_text()
    assert text.startswith(f"500 frames too narrow to draw, {100 * 0.05 / 1.05:.1f} % of all together.")
    one.page.context.close()
    assert one.said == []


def test_a_tree_without_any_weight_says_so(browser: Browser, tmp_path: Path) -> None:
    tree = helpers.build([])
    empty = CallTree("empty", tree.frames, tree.parent, tree.frame, tree.line, {})
    one = Opened(browser, tmp_path, empty)
    assert one.page.locator("#empty").inner_text() == "This recording holds nothing that can be weighed."
    one.page.context.close()
    assert one.said == []
