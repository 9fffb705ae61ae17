"""The playground asks, streams, stops and compares."""

from __future__ import annotations

import pytest
from playwright.async_api import Route, expect

from tests.browser.chromium import Watched
from tests.integration.gateway.live import Live

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_predict_shows_the_candidates_and_sends_nothing(page: Watched, gateway: Live) -> None:
    before = len(await gateway.rows())
    await page.go("#/playground")
    await page.page.get_by_label("TTFT target, ms").fill("900")
    await page.page.get_by_label("Policy A").select_option("price")
    await page.page.get_by_role("button", name="Predict").click()
    table = page.page.get_by_role("region", name="Candidates A")
    await expect(table.locator("tbody tr")).to_have_count(2)
    _, told = await gateway.post(
        "/v1/routing/predict",
        {
            "model": "auto",
            "messages": [
                {
                    "role": "user",
                    "content": await page.page.get_by_role("textbox", name="Prompt").input_value(),
                }
            ],
            "max_tokens": 200,
            "routing": {"policy": "price", "slo": {"ttft_ms": 900}},
        },
    )
    await expect(table.locator("tr.chosen")).to_contain_text(told["instance"])
    await expect(page.page.get_by_label("Column A")).to_contain_text(f"{told['prompt_tokens']} tokens")
    assert len(await gateway.rows()) == before


async def test_two_policies_stream_side_by_side(page: Watched, gateway: Live) -> None:
    await page.go("#/playground")
    await page.page.get_by_label("Model").select_option("llama-3.1-8b")
    await page.page.get_by_label("Maximum output tokens").fill("24")
    await page.page.get_by_label("Compare two policies").check()
    await page.page.get_by_label("Policy A").select_option("latency")
    await page.page.get_by_label("Policy B").select_option("price")
    await page.page.get_by_role("button", name="Send").click()
    for name, policy in (("A", "latency"), ("B", "price")):
        column = page.page.get_by_label(f"Column {name}")
        link = column.get_by_role("link", name="Why, and every attempt")
        await expect(link).to_be_visible()
        row = await gateway.row((await link.get_attribute("href") or "").rpartition("/")[2])
        assert (row["policy"], row["outcome"], row["finish_reason"]) == (policy, "ok", "length")
        assert row["slo_met"] is True
        await expect(column).to_contain_text("SLO met")
        tokens = column.get_by_role("region", name="Predicted and actual").locator(
            "tr", has_text="Output tokens"
        )
        await expect(tokens.locator("td").nth(1)).to_have_text(str(row["output_tokens"]))
        assert len((await column.locator(".answer").inner_text()).split()) > 10
        await expect(column.get_by_role("button", name="Stop")).to_be_hidden()


async def test_stop_cancels_at_the_engine(page: Watched, gateway: Live) -> None:
    page.expected = ("404",)  # its record may not be there yet when it is first asked for
    await page.go("#/playground")
    await page.page.get_by_label("Model").select_option("qwen2.5-7b")
    await page.page.get_by_label("Maximum output tokens").fill("4000")
    await page.page.get_by_role("button", name="Send").click()
    column = page.page.get_by_label("Column A")
    await expect(column.locator(".answer")).to_contain_text("Emulated")
    await expect(column.locator(".clock")).to_contain_text("TTFT")
    await column.get_by_role("button", name="Stop").click()
    await expect(column).to_contain_text("Stopped.")
    link = column.get_by_role("link", name="Why, and every attempt")
    await expect(link).to_be_visible()
    await expect(column).to_contain_text("client cancelled")
    row = await gateway.row((await link.get_attribute("href") or "").rpartition("/")[2])
    assert row["outcome"] == "client_cancelled"
    assert row["decoded"] is True
    await gateway.until(lambda: gateway.instances["slow"].in_flight == 0)


async def test_a_refusal_is_told_in_words(page: Watched) -> None:
    page.expected = ("400",)
    await page.go("#/playground")
    await page.page.get_by_label("Money cap, USD").fill("0.000000000001")
    await page.page.get_by_label("Model").select_option("llama-3.1-8b")
    await page.page.get_by_role("button", name="Send").click()
    await expect(page.page.get_by_label("Column A").get_by_role("alert")).to_contain_text(
        "budget unattainable"
    )


async def test_a_second_send_replaces_the_first(page: Watched, gateway: Live) -> None:
    page.expected = ("404",)  # its record may not be there yet when it is first asked for
    await page.go("#/playground")
    await page.page.get_by_label("Model").select_option("qwen2.5-7b")
    await page.page.get_by_label("Maximum output tokens").fill("4000")
    column = page.page.get_by_label("Column A")
    for _ in range(2):
        await page.page.get_by_role("button", name="Send").click()
        await expect(column.locator(".answer")).to_contain_text("Emulated")
    await gateway.until(lambda: gateway.instances["slow"].in_flight == 1)
    await expect(column.locator(".answer")).to_have_attribute("aria-busy", "true")
    await column.get_by_role("button", name="Stop").click()
    await expect(column).to_contain_text("Stopped.")
    await gateway.until(lambda: gateway.instances["slow"].in_flight == 0)


async def test_the_models_are_there_once_the_gateway_answers_again(page: Watched) -> None:
    page.expected = ("Failed to load resource", "net::ERR")
    await page.page.route("**/v1/models", lambda route: route.abort())
    await page.go("#/playground")
    model = page.page.get_by_label("Model")
    await expect(page.page.get_by_role("alert").filter(has_text="does not answer")).to_be_visible()
    await expect(model.locator("option")).to_have_count(1)
    await page.page.unroute("**/v1/models")
    await expect(model.locator("option")).to_have_count(3)
    await expect(page.page.get_by_text("does not answer")).to_have_count(0)


async def test_predict_ends_the_answer_that_was_under_way(page: Watched, gateway: Live) -> None:
    await page.go("#/playground")
    await page.page.get_by_label("Model").select_option("qwen2.5-7b")
    await page.page.get_by_label("Maximum output tokens").fill("4000")
    column = page.page.get_by_label("Column A")
    await page.page.get_by_role("button", name="Send").click()
    await expect(column.locator(".answer")).to_contain_text("Emulated")
    await page.page.get_by_role("button", name="Predict").click()
    await expect(column.get_by_role("status")).to_contain_text("would send it to slow")
    await expect(column.get_by_role("button", name="Stop")).to_be_hidden()
    await gateway.until(lambda: gateway.instances["slow"].in_flight == 0)


async def test_a_column_that_is_put_away_is_stopped(page: Watched, gateway: Live) -> None:
    page.expected = ("404",)  # its record may not be there yet when it is first asked for
    await page.go("#/playground")
    await page.page.get_by_label("Model").select_option("qwen2.5-7b")
    await page.page.get_by_label("Maximum output tokens").fill("4000")
    await page.page.get_by_label("Compare two policies").check()
    await page.page.get_by_role("button", name="Send").click()
    await gateway.until(lambda: gateway.instances["slow"].in_flight == 2)
    await page.page.get_by_label("Compare two policies").uncheck()
    await gateway.until(lambda: gateway.instances["slow"].in_flight == 1)
    column = page.page.get_by_label("Column A")
    await column.get_by_role("button", name="Stop").focus()
    await page.page.keyboard.press("Enter")
    await expect(column).to_contain_text("Stopped.")
    await expect(column.locator(".answer")).to_be_focused()  # the button is gone
    await gateway.until(lambda: gateway.instances["slow"].in_flight == 0)


async def test_an_answer_that_is_cut_is_told_in_words(page: Watched) -> None:
    await page.go("#/playground")
    await page.page.evaluate(
        "() => { ReadableStreamDefaultReader.prototype.read = async () => { throw new TypeError('network error'); }; }"
    )
    await page.page.get_by_role("button", name="Send").click()
    alert = page.page.get_by_label("Column A").get_by_role("alert")
    await expect(alert).to_have_text("unreachable: The gateway does not answer.")


async def test_what_was_entered_is_there_again_after_a_look_at_the_request(page: Watched) -> None:
    await page.go("#/playground")
    model, policy = (page.page.locator(f"select[name={name}]").first for name in ("model", "policy"))
    prompt, tokens = page.page.locator("[name=prompt]"), page.page.locator("[name=max_tokens]")
    await model.select_option("llama-3.1-8b")
    await policy.select_option("price")
    await prompt.fill("One of my own")
    await tokens.fill("5")
    await page.page.get_by_role("button", name="Send").click()
    await page.page.get_by_role("link", name="Why, and every attempt").click()
    await page.page.locator("#request-id").wait_for()
    await page.page.go_back()
    for control, value in (
        (model, "llama-3.1-8b"),
        (policy, "price"),
        (prompt, "One of my own"),
        (tokens, "5"),
    ):
        await expect(control).to_have_value(value)
    await expect(model.locator("option")).to_have_count(3)
    await expect(model).to_have_value("llama-3.1-8b")


async def test_the_policies_are_those_of_the_gateway_as_it_is_now(page: Watched) -> None:
    await page.go("#/fleet")

    async def restarted(route: Route) -> None:
        about = await (await route.fetch()).json()
        await route.fulfill(json=about | {"default_policy": "price"})

    await page.page.route("**/ui/about.json", restarted)
    await page.page.get_by_role("link", name="Playground").click()
    await expect(page.page.get_by_label("Policy A").locator("option").first).to_have_text("default (price)")
