"""The web page in a real browser, in front of a real server and small trained models."""
# ruff: noqa: E402

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM, CONTROL, SHIFT, Browser, Page, browsing

if CHROMIUM is None:
    pytest.skip("Chromium is not installed: apt install chromium", allow_module_level=True)
for needed in ("fastapi", "uvicorn", "prometheus_client", "py3langid"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: pip install 'anydepth[serve]'")

from served_runs import ENGLISH_GERMAN, GOLDEN, TEXTS, calibrated, classifying, summarizing, word_by_word
from serving import Client, held, serving

import anydepth
from anydepth.run import Run
from anydepth.serving.served import Pair, Served

Open = Callable[..., Page]
EVIL = "<img src=x onerror=hit=1>"
ANSWERED = "document.querySelector('#facts').textContent && !document.body.classList.contains('working')"
RESULT = "document.querySelector('#result').textContent"
DEPTH = "document.querySelector('#facts b').textContent"
IDLE = "document.querySelector('.pulse.idle') !== null"
ALERT = "document.querySelector('#problem:not([hidden])')?.textContent"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens the page of a server. Whatever a test does, no script may fail or be forbidden, and nothing may be loaded
    from elsewhere."""
    pages: list[tuple[Page, str]] = []

    def open_page(client: Client, **looks: Any) -> Page:
        page = Page(browser, **looks)
        pages.append((page, client.url))
        page.open(client.url)
        page.wait("document.querySelector('#tasks').children.length")
        return page

    yield open_page
    for page, url in pages:
        assert page.complaints == []
        assert [asked for asked in page.asked if not asked.startswith(url)] == []
        page.close()


@pytest.fixture(scope="module")
def run() -> Run:
    return anydepth.load(GOLDEN, "cpu")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return anydepth.load(calibrated(tmp_path_factory.mktemp("runs") / "known"), "cpu")


@pytest.fixture(scope="module")
def client(known: Run) -> Iterator[Client]:
    with serving({"known": (known, ENGLISH_GERMAN)}) as client:
        yield client


def translate(page: Page, text: str) -> str:
    page.write("#text", text)
    page.click("#go")
    page.wait(ANSWERED)
    return str(page.run(RESULT))


def choose(page: Page, name: str, value: str) -> None:
    page.click(f"input[name={name}][value={value}]")


def slide(page: Page, stack: str, key: str) -> None:
    page.run(f"document.querySelector('[aria-label=\"{stack} depth\"]').focus()")
    page.press(key)


# ---- what it is for


def test_a_text_is_translated(open_page: Open, client: Client, known: Run) -> None:
    page = open_page(client)
    choose(page, "quality", "best")
    assert translate(page, "\n".join(TEXTS[:2])) == "\n".join(known.translate(TEXTS[:2]))
    assert page.run(DEPTH) == "2-2"
    assert re.search(r"\d ms computing.*\d ms waiting", page.text("#facts"))
    page.select("#source", "auto")
    page.wait(ANSWERED)
    assert page.text("#detected").startswith("English, ")


def test_languages_can_be_swapped(open_page: Open, run: Run) -> None:
    with serving({"both": (run, ENGLISH_GERMAN | {Pair("de", "en"): ""})}) as client:
        page = open_page(client)
        found = translate(page, TEXTS[0])
        page.click("#swap")
        page.wait(f"document.querySelector('#text').value !== {json.dumps(TEXTS[0])} && {ANSWERED}")
        assert page.run("['source', 'target'].map(id => document.getElementById(id).value)") == ["de", "en"]
        assert page.run("document.querySelector('#text').value") == found
        assert page.run(RESULT) == run.translate([found])[0]


def test_the_dial_has_the_depths_of_the_run(open_page: Open, client: Client, known: Run) -> None:
    page = open_page(client)
    choose(page, "mode", "hand")
    assert page.run("[...document.querySelectorAll('#dial input')].map(one => one.max)") == ["2", "2"]
    assert translate(page, TEXTS[3]) == known.translate(TEXTS[3:4], "2-2")[0]
    for stack, key, depth in (
        ("Decoder", "ArrowLeft", "2-1"),
        ("Encoder", "ArrowLeft", "1-1"),
        ("Decoder", "ArrowRight", "1-2"),
    ):
        slide(page, stack, key)  # and the text follows
        page.wait(f"{ANSWERED} && {DEPTH} === '{depth}'")
        assert page.run(RESULT) == known.translate(TEXTS[3:4], depth)[0]
        assert page.run("document.querySelector('.dot.chosen').dataset.depth") == depth
    # a click on the second of two layers is the second layer
    page.click("#dial .stack:first-child .bars i:nth-child(2)")
    page.wait(f"{DEPTH} === '2-2'")


def test_automatic_depths_and_the_front(open_page: Open, client: Client, known: Run) -> None:
    page = open_page(client)
    page.write("#text", TEXTS[0])
    page.click("#go")
    balanced = known.guide(5).options.automatic(64).depth
    for quality, depth in (("fast", "1-1"), ("best", "2-2"), ("balanced", balanced)):
        choose(page, "quality", quality)
        page.wait(f"{ANSWERED} && {DEPTH} === '{depth}'")
        assert depth in page.text("#explained")
        assert page.run("document.querySelector('.dot.chosen').dataset.depth") == depth
    choose(page, "quality", "budget")
    for budget, depth in (("2", "1-1"), ("5000", "2-2")):
        page.write("#budget", budget)
        page.press("Enter")
        page.wait(f"{ANSWERED} && {DEPTH} === '{depth}'")
    assert page.run("document.querySelectorAll('.dot').length") == 4
    page.click(".dot[data-depth='1-1'] .mark")
    page.wait(f"{DEPTH} === '1-1'")
    assert page.run("document.querySelector('input[name=mode]:checked').value") == "hand"


def test_a_draft_is_refined_in_place(open_page: Open, client: Client, known: Run) -> None:
    page = open_page(client)
    choose(page, "quality", "best")
    page.write("#text", TEXTS[3])
    with second_held(client.runs[0]):
        page.click("#go")
        draft = page.wait(f"document.body.classList.contains('drafting') && {RESULT}")
        depth = page.text("#stage").removeprefix("draft at ")
        assert draft == known.translate(TEXTS[3:4], depth)[0]
        assert page.run("document.querySelector('#result').getAttribute('aria-busy')") == "true"
        assert page.text("#facts") == ""
    page.wait(ANSWERED)
    final = known.translate(TEXTS[3:4])[0]
    assert page.run(RESULT) == final != draft
    fresh = page.run("[...document.querySelectorAll('#result mark.fresh')].map(one => one.textContent)")
    assert fresh
    assert all(words in final for words in fresh)
    assert f"the draft of {depth}, shown after" in page.text("#facts")
    page.click("#draft")
    assert translate(page, TEXTS[3]) == final
    assert "draft" not in page.text("#facts")


def test_depths_side_by_side(open_page: Open, client: Client, known: Run) -> None:
    page = open_page(client)
    page.write("#text", TEXTS[3])
    page.click("#compare-go")
    page.wait("[...document.querySelectorAll('.said')].every(one => one.textContent)")
    depths = page.run("[...document.querySelectorAll('.column select')].map(one => one.value)")
    assert (depths[0], depths[-1]) == ("1-1", "2-2")
    last = known.translate(TEXTS[3:4])[0]
    for number, depth in enumerate(depths, 1):
        column = f".column:nth-child({number})"
        (text,) = known.translate(TEXTS[3:4], depth)
        assert page.run(seen(column)) == text
        assert re.fullmatch(r"[\d.]+ ms", page.text(f"{column} .time"))
        assert (page.run(f"document.querySelectorAll('{column} mark, {column} .missing').length") > 0) == (text != last)
    page.click("#add")
    assert page.run("document.querySelectorAll('.column').length") == len(depths) + 1
    page.click(".column:nth-child(1) button")
    assert page.run("document.querySelectorAll('.column').length") == len(depths)
    page.click("#text")
    page.type(" ")  # another text: the answers are of no use
    assert page.run("[...document.querySelectorAll('.said')].every(one => !one.textContent)")


def seen(column: str) -> str:
    """The text of a column, without what only says what is missing."""
    return f"""(() => {{
        const copy = document.querySelector('{column} .said').cloneNode(true);
        copy.querySelectorAll('.missing').forEach(one => one.remove());
        return copy.textContent;
    }})()"""


def test_load_is_shown_while_it_lasts(open_page: Open, known: Run) -> None:
    with serving({"known": (known, ENGLISH_GERMAN)}) as client, ThreadPoolExecutor(8) as pool:
        page = open_page(client)
        page.wait(IDLE)
        assert page.text(".current b") == "2-2"
        with held(client.runs[0]) as reached:
            asked = [pool.submit(client.translate, TEXTS[0])]
            assert reached.wait(10)
            asked += [pool.submit(client.translate, TEXTS[0]) for _ in range(6)]
            page.wait("document.querySelector('#pulse').textContent === '6 waiting'")
            page.wait("document.querySelector('.pulse.lowered') !== null")
            assert page.text(".current b") != "2-2"
            assert "lowered the depth" in page.text("#now-about")
        assert [one.result(30).status for one in asked] == [200] * 7
        page.wait("document.querySelector('.current b').textContent === '2-2'")


def test_other_runs(open_page: Open, run: Run, tmp_path: Path) -> None:
    summarizer = anydepth.load(summarizing(tmp_path / "notices"), "cpu")
    labeller = anydepth.load(word_by_word(tmp_path / "opinions"), "cpu")
    runs = {"golden": (run, ENGLISH_GERMAN), "notices": (summarizer, {}), "opinions": (labeller, {})}
    with serving(runs) as client:
        page = open_page(client)
        choose(page, "task", "summarize")
        assert translate(page, TEXTS[0]) == summarizer.summarize(TEXTS[:1])[0]
        choose(page, "task", "classify")
        text = "the music was lovely"
        page.write("#text", text)
        page.click("#go")
        page.wait(ANSWERED)
        (found,) = labeller.classify([text], "adaptive")
        assert page.text(".verdict") == found.label
        shown = page.run(
            "[...document.querySelectorAll('.word')].map(one => [one.firstChild.data, one.lastChild.textContent])"
        )
        depths = dict(found.words)
        assert shown[1] == ["the", str(depths["▁the"])]  # behind the mark of the beginning
        assert "".join(word for word, _ in shown) == "".join(piece for piece, _ in found.words).replace("▁", "")
        colours = page.run(
            "[...new Set([...document.querySelectorAll('.word')].map(one => getComputedStyle(one).backgroundColor))]"
        )
        assert len(colours) == len({depth for _, depth in found.words}) > 1


def test_a_run_that_was_not_calibrated_says_so(open_page: Open, run: Run) -> None:
    with serving({"golden": (run, ENGLISH_GERMAN)}) as client:
        page = open_page(client)
        assert "anydepth calibrate RUN" in page.text("#front")
        assert page.run("[...document.querySelectorAll('input[name=quality]:disabled')].map(one => one.value)") == [
            "fast", "balanced", "budget", "adaptive",
        ]  # fmt: skip
        assert translate(page, TEXTS[0]) == run.translate(TEXTS[:1])[0]


# ---- when something is wrong


def test_a_server_that_is_gone_and_comes_back(open_page: Open, run: Run) -> None:
    runs = {"golden": (run, ENGLISH_GERMAN)}
    with serving(runs) as client:
        page = open_page(client)
        page.write("#text", TEXTS[0])
        page.wait(IDLE)
    page.click("#go")
    assert "The server does not answer." in page.wait(ALERT)
    page.wait("document.querySelector('#pulse').textContent === 'no answer'")
    with serving(runs, port=client.port):
        page.wait(f"document.querySelector('#problem').hidden && {IDLE}")
        page.click("#go")
        page.wait(ANSWERED)
        page.call("Page.navigate", url="about:blank")  # so that its connections do not keep the server


def test_a_full_queue_is_tried_again(open_page: Open, run: Run) -> None:
    with serving({"golden": (run, ENGLISH_GERMAN)}, room=2) as client, ThreadPoolExecutor(3) as pool:
        page = open_page(client)
        page.write("#text", TEXTS[0])
        with held(client.runs[0]) as reached:
            asked = [pool.submit(client.translate, TEXTS[0])]
            assert reached.wait(10)
            asked += [pool.submit(client.translate, TEXTS[0]) for _ in range(2)]
            page.wait("document.querySelector('#pulse').textContent === '2 waiting'")
            page.click("#go")
            said = page.wait(ALERT)
            assert "The server is busy" in said
            assert re.search(r"Try again \(\d+ s\)", said)
        page.wait(ANSWERED)  # by itself
        assert page.run(RESULT) == run.translate(TEXTS[:1])[0]
        assert page.run("document.querySelector('#problem').hidden")
        assert [one.result(30).status for one in asked] == [200] * 3


def test_texts_that_are_too_long(open_page: Open, run: Run) -> None:
    with serving({"golden": (run, ENGLISH_GERMAN)}, characters=4000) as client:
        page = open_page(client)
        page.write("#text", "x" * 4001)
        assert page.text("#count") == "4,001 / 4,000"
        assert page.run("document.querySelector('#count').classList.contains('over')")
        page.click("#go")
        assert "This text is too long: 4001 characters" in page.wait(ALERT)
        page.write("#text", "x " * 1999)  # fewer characters, but more than the model reads
        page.click("#go")
        assert "The server refused: line 1:" in page.wait(f"{ALERT}?.includes('refused') && {ALERT}")


def test_a_server_that_wants_a_key(open_page: Open, run: Run) -> None:
    with serving({"golden": (run, ENGLISH_GERMAN)}, keys=["geheim"]) as client:
        page = open_page(client)
        page.write("#text", TEXTS[0])
        page.click("#go")
        assert "wants an API key" in page.wait(ALERT)
        assert page.run("document.activeElement.id") == "key"
        page.type("geheim")
        page.press("Enter")
        page.wait(ANSWERED)
        assert page.run(RESULT) == run.translate(TEXTS[:1])[0]


def test_a_fault_of_the_server(open_page: Open, run: Run) -> None:
    with serving({"golden": (run, ENGLISH_GERMAN)}) as client:
        page = open_page(client)
        page.write("#text", TEXTS[0])
        client.runs[0].worker.compute = lambda *batch: 1 // 0
        page.click("#go")
        assert "Something broke on the server" in page.wait(ALERT)


# ---- for everybody


def test_nothing_that_is_said_becomes_a_script(open_page: Open, run: Run, tmp_path: Path) -> None:
    labeller = anydepth.load(classifying(tmp_path / "labels", (EVIL, "b")), "cpu")
    with serving({EVIL: (run, ENGLISH_GERMAN), f"2 {EVIL}": (labeller, {})}) as client:
        page = open_page(client)
        text = f"{EVIL}<script>hit=1</script> {TEXTS[0]}"
        translate(page, text)
        page.click("#compare-go")
        page.wait("[...document.querySelectorAll('.said')].every(one => one.textContent)")
        assert EVIL in page.text("#front")  # the name of the run
        choose(page, "task", "classify")
        page.click("#go")
        page.wait(ANSWERED)
        assert EVIL in page.text("#result")  # a label
        page.select("#run", f"2 {EVIL}")
        page.write("#text", "")
        page.run(f"fetch('translate', {{ method: 'POST', body: new URLSearchParams({{ q: 'x', target: '{EVIL}' }}) }})")
        assert page.run("typeof hit") == "undefined"
        assert page.run("document.querySelectorAll('img, script:not([src])').length") == 0


def test_no_script_of_others_would_run_anyway(client: Client) -> None:
    for path in ("/", "/page/app.js"):
        answer = client.get(path)
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    for path in ("/page/..%2fapp.py", "/page/../app.py", "/page/nothing.js", "/page/"):
        assert client.get(path).status == 404


def test_the_keyboard_is_enough(open_page: Open, client: Client, known: Run) -> None:
    page = open_page(client)
    tab_to(page, "text")
    page.type(TEXTS[3])
    page.press("Enter", modifiers=CONTROL)
    page.wait(ANSWERED)
    tab_to(page, "Automatic")
    page.press("ArrowRight")
    for _ in range(2):
        page.press("Tab")
    assert page.run("document.activeElement.getAttribute('aria-label')") == "Decoder depth"
    assert page.run("getComputedStyle(document.activeElement.parentElement).outlineStyle") == "solid"
    page.press("ArrowDown")
    page.wait(f"{ANSWERED} && {DEPTH} === '2-1'")
    assert page.run("document.activeElement.getAttribute('aria-valuetext')") == "1 of 2 layers"
    page.press("Tab", modifiers=SHIFT)
    page.press("ArrowDown")
    page.wait(f"{ANSWERED} && {DEPTH} === '1-1'")
    tab_to(page, "1 encoder and 2 decoder layers|2 encoder and 2 decoder layers")  # a point of the front
    page.press("Enter")
    page.wait(f"{ANSWERED} && {DEPTH} !== '1-1'")
    tab_to(page, "Compare")
    page.press(" ")
    page.wait("[...document.querySelectorAll('.said')].every(one => one.textContent)")


def tab_to(page: Page, name: str) -> None:
    """With the key, until an element of this id, label or text has the focus."""
    described = "(one => [one.id, one.ariaLabel, one.labels?.[0]?.textContent, one.textContent].join('\\n'))"
    for _ in range(40):
        page.press("Tab")
        if re.search(name, page.run(f"{described}(document.activeElement)")):
            return
    pytest.fail(f"Tab never reaches {name}")


def test_everything_has_a_name(open_page: Open, client: Client) -> None:
    page = open_page(client)
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "combobox", "textbox", "slider", "radio", "checkbox", "spinbutton", "link"}
    used = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    assert len(used) > 15
    assert [node for node in used if not node["name"]["value"].strip()] == []
    assert page.run("document.querySelector('#result').ariaLive") == "polite"
    assert page.run("document.querySelector('#problem').role") == "alert"


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(open_page: Open, client: Client, dark: bool) -> None:
    page = open_page(client, width=360, height=740, dark=dark)
    choose(page, "quality", "budget")
    translate(page, f"{TEXTS[3]} {'x' * 30}")
    page.click("#compare-go")
    page.wait("[...document.querySelectorAll('.said')].every(one => one.textContent)")
    assert page.run("document.documentElement.scrollWidth") <= 360
    choose(page, "mode", "hand")
    assert page.run("document.documentElement.scrollWidth") <= 360
    edges = "[...document.querySelectorAll('button, select, .stack')].map(one => one.getBoundingClientRect().right)"
    assert max(page.run(edges)) <= 360


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_can_be_read(open_page: Open, client: Client, dark: bool) -> None:
    page = open_page(client, dark=dark)
    assert (luminance(colour(page, "body", "backgroundColor")) < 0.1) == dark
    translate(page, TEXTS[3])
    card = colour(page, "#work", "backgroundColor")
    for selector in ("#result", "#text", ".facts span", "#explained", ".about", "#draft-field", "input:checked + span"):
        assert contrast(colour(page, selector, "color"), card) > 4.5, selector
    assert contrast(colour(page, "#go", "color"), colour(page, "#go", "backgroundColor")) > 4.5


def colour(page: Page, selector: str, which: str) -> Sequence[float]:
    found = page.run(f"getComputedStyle(document.querySelector({selector!r})).{which}")
    return [float(number) for number in re.findall(r"[\d.]+", found)[:3]]


def luminance(colour: Sequence[float]) -> float:
    """Of sRGB, as the guidelines for accessible pages (WCAG 2) have it."""
    light = [value / 255 / 12.92 if value <= 10 else ((value / 255 + 0.055) / 1.055) ** 2.4 for value in colour]
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@contextmanager
def second_held(one: Served) -> Iterator[None]:
    """A run that computes one batch, and the next when the block is left."""
    gate, begun, compute = threading.Event(), threading.Event(), one.worker.compute

    def after_the_first(*batch: Any) -> Sequence[Any]:
        if begun.is_set():
            gate.wait(30)
        begun.set()
        return compute(*batch)

    one.worker.compute = after_the_first
    try:
        yield
    finally:
        gate.set()
        one.worker.compute = compute
