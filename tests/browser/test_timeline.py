"""The timeline: the span that it begins with, a topic, there and back, on a phone."""

import pytest

from .conftest import Console

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_it_shows_what_is_pending_and_is_found_as_it_was(console: Console) -> None:
    page = console.page
    items = [
        {"topic": f"orders/{n}", "payload": n, "deliver_in": 3 * 86_400 + 3_000 * n, "key": f"order-{n}"}
        for n in range(60)
    ]
    items += [{"topic": "jobs/soon", "payload": 0, "deliver_in": 900}] * 5
    await console.http.call("POST", "/v1/messages:batch", items, status=201)
    pressed = page.get_by_role("toolbar", name="Span").locator("[aria-pressed=true]")
    await console.open("timeline")
    # Nine of ten of these 65 lie within 5 days.
    assert await pressed.inner_text() == "7 d"
    legend = page.locator(".legend").first
    await legend.get_by_text("65 pending").wait_for()
    # The map has a scale: an hour has one message, or the five.
    scale = (await page.locator(".legend").nth(1).inner_text()).split()
    assert scale == ["Messages", "in", "an", "hour:", "none", "1", "5"]
    await console.write("Topic filter", "jobs/#")
    await console.press("Show")
    await legend.get_by_text("5 pending").wait_for()
    await console.press("Fit")
    await legend.get_by_text("a bar is 1 min").wait_for()
    assert await pressed.inner_text() == "1 h"
    await page.locator("svg.chart .hit", has_text="5 pending").first.click()
    await console.shown("messages")
    assert await page.get_by_label("Topic, words, id or key", exact=True).last.input_value() == "jobs/#"
    assert await page.locator("tbody tr").count() == 5
    # The legend tells of the bar below the mouse, and a minute later that is another bar.
    await page.mouse.move(0, 0)
    await page.go_back()
    await console.shown("timeline")
    assert await pressed.inner_text() == "1 h"
    await legend.get_by_text("5 pending").wait_for()
    await console.press("All topics")
    await page.get_by_text("As a table").click()
    await page.get_by_role("row").get_by_role("link").first.click()
    await console.shown("messages")

    # A phone: the chart is drawn for its width, so its texts have the size that they have elsewhere.
    await page.mouse.move(0, 0)
    await page.set_viewport_size({"width": 390, "height": 844})
    await console.open("timeline?span=604800000")
    await legend.get_by_text("65 pending").wait_for()
    enlarged = "(node) => node.getBoundingClientRect().width / node.viewBox.baseVal.width"
    assert await page.locator("svg.chart").evaluate(enlarged) == pytest.approx(1, abs=0.01)
    assert await page.locator(".heat .hour").all_inner_texts() == [f"{n:02}" for n in range(0, 24, 3)]
    # Turned round, it is drawn anew.
    await page.set_viewport_size({"width": 844, "height": 390})
    await page.wait_for_function("() => document.querySelectorAll('.heat .hour').length === 24")
    assert await page.locator("svg.chart").evaluate(enlarged) == pytest.approx(1, abs=0.01)
    # An address that somebody has cut short is no error.
    for address in ("timeline?from=yesterday&to=5", "timeline?span=-1"):
        await console.open(address)
        await page.locator("svg.chart").wait_for()
