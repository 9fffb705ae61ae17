"""Keys that make keys: what holds for each, and that none ever has more than those above it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.config import KeyConfig, loads
from router.gateway.fleet.rules import Rules
from router.gateway.keys.accounts import KeyBudget, budget_levels
from router.gateway.keys.tenants import MAX_BELOW, MAX_DEPTH, SETTINGS, BadKey, NameUsed, Tenants, key_of
from router.store.keys import StoredKey
from router.store.memory_state import MemoryState
from tests.pace import lines

MODELS = ("a", "b", "c")


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def configured(name: str, **settings: Any) -> KeyConfig:
    return key_of(name, digest(name), settings)


def stored(name: str, maker: str | None = None, *, revoked: bool = False, **settings: Any) -> StoredKey:
    return StoredKey(name, digest(name), maker, json.dumps(settings), 1.0, 2.0 if revoked else None)


def model_name(requested: str) -> str | None:
    return {"alias-of-a": "a"}.get(requested, requested if requested in MODELS else None)


def tenants(*rows: StoredKey, file: tuple[KeyConfig, ...] = ()) -> Tenants:
    return Tenants(file, rows, model_name)


def refused(known: Tenants, maker: str | None, name: str = "new", **given: Any) -> BadKey:
    with pytest.raises(BadKey) as caught:
        known.check(given, key_of(name, digest(name), given), maker)
    return caught.value


# --- what holds ---------------------------------------------------------------------------------------
def test_the_tightest_of_the_chain_holds() -> None:
    known = tenants(
        stored("mid", "top", budget_usd=50.0, min_quality=0.4, models=["alias-of-a", "b"], policy="price"),
        stored("low", "mid", budget_usd=80.0, requests_per_minute=9, models=["b", "c"], makes_keys=True),
        file=(
            configured(
                "top", budget_usd=100.0, max_priority=3, min_quality=0.6, attainment=0.9, makes_keys=True
            ),
        ),
    )
    held = known.effective("low")
    assert (held.budget_usd, held.requests_per_minute, held.min_quality) == (50.0, 9, 0.6)
    assert held.models == ("b",)
    assert held.policy == "price"  # its own maker's default, since it has none
    assert held.max_priority == 0  # the default of those that do not say
    assert held.attainment == 0.9
    assert not held.makes_keys  # mid may not
    assert known.effective("mid").models == ("a", "b")


def test_the_settings_of_a_key_that_no_key_made_are_found_in_few_steps() -> None:
    key = configured("a", budget_usd=3.0, min_quality=0.5, locked=True, policy="cost")
    known = tenants(file=(key,))
    with lines() as counted:
        found = known.effective("a")
    assert found == key
    assert counted.run < 20


def test_a_lock_from_above_holds_whatever_was_asked_below() -> None:
    low = stored("low", "top", policy="latency", locked=True)
    assert tenants(low, file=(configured("top"),)).effective("low").policy == "latency"
    held = tenants(low, file=(configured("top", policy="cost", locked=True),)).effective("low")
    assert (held.policy, held.locked) == ("cost", True)


def test_models_that_left_the_fleet_leave_the_key() -> None:
    assert tenants(stored("k", models=["a", "gone"])).effective("k").models == ("a",)
    assert tenants(stored("k", models=["gone"])).effective("k").models == ()
    assert tenants(stored("k")).effective("k").models is None


def test_whatever_a_key_takes_is_taken_from_all_above_it_its_own_first() -> None:
    account = tenants(
        stored("mid", "top", tokens_per_minute=600),
        stored("low", "mid", budget_usd_per_day=1.0, requests_per_minute=3),
        file=(configured("top", budget_usd=9.0, requests_per_minute=60),),
    ).account("low")
    assert [bucket.name for bucket in account.requests] == ["low/requests", "top/requests"]
    assert [(bucket.name, bucket.capacity, bucket.refill_per_s) for bucket in account.tokens] == [
        ("mid/tokens", 600, 10.0)
    ]
    found = account.key_budgets
    assert found == (KeyBudget("low", 1.0, None), KeyBudget("mid", None, None), KeyBudget("top", None, 9.0))


# --- who lives ----------------------------------------------------------------------------------------
def test_a_key_dies_with_any_of_those_above_it() -> None:
    file = (configured("top"),)
    rows = [stored("mid", "top"), stored("low", "mid"), stored("other", "top")]
    assert all(map(tenants(*rows, file=file).alive, ("top", "mid", "low", "other")))
    rows[0] = stored("mid", "top", revoked=True)
    known = tenants(*rows, file=file)
    assert [known.alive(name) for name in ("top", "mid", "low", "other")] == [True, False, False, True]
    assert not any(map(tenants(*rows).alive, ("mid", "low", "other")))  # top left the file
    # What the dead spent still counts for those above them.
    assert [purse.key for purse in known.account("low").key_budgets] == ["low", "mid", "top"]


def test_a_circle_in_the_table_works_for_nobody() -> None:
    known = tenants(stored("a", "b"), stored("b", "a"), stored("c", "c"))
    assert not any(map(known.alive, ("a", "b", "c")))
    assert known.made_by("a") == ["b"]
    assert known.made_by("c") == []
    known.account("a")
    known.effective("c")


def test_made_by_reaches_all_the_way_down() -> None:
    known = tenants(stored("a"), stored("b", "a"), stored("c", "b"), stored("d", "b"), stored("e"))
    assert sorted(known.made_by("a")) == ["b", "c", "d"]
    assert known.made_by("e") == []


def test_the_files_key_wins_over_the_tables() -> None:
    same_hash = StoredKey("twin", digest("top"), None, "{}", 1.0)
    known = tenants(stored("top", budget_usd=9.0), same_hash, file=(configured("top", budget_usd=1.0),))
    assert [tenant.name for tenant in known] == ["top"]
    assert known.effective("top").budget_usd == 1.0
    assert len(known.left_out) == 2
    assert "top" in known.left_out[0]
    assert "twin" in known.left_out[1]
    assert digest("top") not in " ".join(known.left_out)


@pytest.mark.parametrize(
    "text", ["", "[]", "7", '{"budget": 1}', '{"budget_usd": "lots"}', '{"sha256": "0"}']
)
def test_settings_that_cannot_be_read_shut_the_key_out(text: str) -> None:
    known = tenants(StoredKey("odd", digest("odd"), None, text, 1.0))
    if text == "[]":  # no settings at all
        assert known.alive("odd")
        return
    assert not known.alive("odd")
    assert "odd" in known.left_out[0]


# --- making -------------------------------------------------------------------------------------------
TOP = configured(
    "top",
    policy="cost",
    locked=True,
    models=["a", "b"],
    max_priority=2,
    min_quality=0.5,
    budget_usd_per_day=5.0,
    budget_usd=50.0,
    requests_per_minute=60,
    tokens_per_minute=6000,
    max_cost_usd=0.1,
    makes_keys=True,
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", "latency"),
        ("locked", False),
        ("models", ["c"]),
        ("models", ["a", "nowhere"]),
        ("max_priority", 3),
        ("min_quality", 0.4),
        ("budget_usd_per_day", 5.5),
        ("budget_usd", 51.0),
        ("requests_per_minute", 61),
        ("tokens_per_minute", 7000),
        ("max_cost_usd", 0.2),
    ],
)
def test_a_cap_beyond_the_makers_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(tenants(file=(TOP,)), "top", **{field: value})
    assert error.field == field
    assert str(error).startswith(f"{field}: ")


def test_a_model_of_others_is_refused_in_the_words_for_one_that_there_is_not() -> None:
    known = tenants(file=(TOP,))
    told = [str(refused(known, "top", models=[name])).replace(name, "?") for name in ("c", "zz")]
    assert told[0] == told[1]


def test_what_is_within_the_makers_caps_is_allowed() -> None:
    given = {
        "policy": "cost",
        "models": ["alias-of-a"],
        "max_priority": 2,
        "min_quality": 0.5,
        "budget_usd": 50.0,
        "makes_keys": True,
    }
    known = tenants(file=(TOP,))
    known.check(given, key_of("new", digest("new"), given), "top")
    known.check({}, key_of("new", digest("new"), {}), "top")


def test_making_keys_has_to_be_granted_all_the_way_up() -> None:
    file = (configured("top", makes_keys=True),)
    plain = tenants(stored("mid", "top"), file=file)
    assert refused(plain, "mid", makes_keys=True).field == "makes_keys"
    lost = tenants(stored("mid", "top", makes_keys=True), file=(configured("top"),))
    assert not lost.effective("mid").makes_keys
    assert refused(lost, "mid", makes_keys=True).field == "makes_keys"


def test_names_are_given_once() -> None:
    known = tenants(stored("old", revoked=True), file=(configured("top"),))
    for name in ("old", "top"):
        assert isinstance(refused(known, None, name), NameUsed)


@pytest.mark.parametrize("maker", ["nobody", "old"])
def test_no_key_is_made_below_one_that_does_not_work(maker: str) -> None:
    assert "no key" in str(refused(tenants(stored("old", revoked=True)), maker))


def test_no_chain_is_deeper_than_its_bound() -> None:
    rows = [stored("k1")] + [stored(f"k{n}", f"k{n - 1}") for n in range(2, MAX_DEPTH + 1)]
    known = tenants(*rows)
    assert known.alive(f"k{MAX_DEPTH}")
    assert refused(known, f"k{MAX_DEPTH}").field == "maker"
    too_deep = tenants(*rows, stored("k9", f"k{MAX_DEPTH}"))
    assert not too_deep.alive("k9")


def test_no_holder_fills_the_table() -> None:
    rows = [stored("a", "top"), *(stored(f"k{n}", "a", revoked=True) for n in range(MAX_BELOW - 1))]
    file = (configured("top"), configured("other"))
    for maker in ("a", "top"):
        assert f"no more than {MAX_BELOW} keys" in str(refused(tenants(*rows, file=file), maker))
    for maker in ("other", None):
        tenants(*rows, file=file).check({}, key_of("new", digest("new"), {}), maker)
    tenants(*rows[:-1], file=file).check({}, key_of("new", digest("new"), {}), "a")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("", {}),
        (None, {}),
        ("no spaces", {}),
        ("-x", {}),
        ("x" * 101, {}),
        ("k", {"sha256": "0" * 64}),
        ("k", {"name": "other"}),
        ("k", {"budget": 1}),
        ("k", {"budget_usd": "1"}),
        ("k", {"budget_usd": -1}),
        ("k", {"budget_usd": float("nan")}),
        ("k", {"requests_per_minute": 0}),
        ("k", {"makes_keys": 1}),
        ("k", {"models": []}),
        ("k", {"models": "a"}),
        ("k", {"locked": True}),
        ("hw-secret text", {}),
        ("k", {"policy": 7, "budget_usd": "hw-secret"}),
    ],
)
def test_what_is_no_key_is_told_without_its_value(name: Any, given: dict[str, Any]) -> None:
    with pytest.raises(BadKey) as caught:
        key_of(name, digest("k"), given)
    assert digest("k") not in str(caught.value)
    assert "hw-secret" not in str(caught.value)


# --- any chain ----------------------------------------------------------------------------------------
caps = st.fixed_dictionaries(
    {},
    optional={
        "policy": st.sampled_from(["cost", "price"]),
        "models": st.lists(st.sampled_from(MODELS), min_size=1, max_size=3, unique=True),
        "max_priority": st.integers(-3, 3),
        "min_quality": st.sampled_from([0.0, 0.3, 0.6, 1.0]),
        "budget_usd_per_day": st.sampled_from([0.0, 1.0, 2.0]),
        "budget_usd": st.sampled_from([0.0, 1.0, 2.0]),
        "requests_per_minute": st.integers(1, 4),
        "tokens_per_minute": st.integers(1, 4),
        "max_cost_usd": st.sampled_from([0.5, 1.0]),
        "makes_keys": st.just(True),
        "locked": st.booleans(),
    },
)
UPPER = (
    "max_priority",
    "budget_usd_per_day",
    "budget_usd",
    "requests_per_minute",
    "tokens_per_minute",
    "max_cost_usd",
)


def within(key: KeyConfig, above: KeyConfig) -> bool:
    for field in UPPER:
        cap, value = getattr(above, field), getattr(key, field)
        if cap is not None and (value is None or value > cap):
            return False
    if above.min_quality is not None and (key.min_quality is None or key.min_quality < above.min_quality):
        return False
    if above.models is not None and (key.models is None or not set(key.models) <= set(above.models)):
        return False
    if above.locked and (not key.locked or key.policy != above.policy):
        return False
    return above.makes_keys or not key.makes_keys


@given(
    st.lists(st.tuples(st.integers(0, 9), caps), min_size=1, max_size=10),
    st.lists(st.tuples(st.integers(0, 9), caps), max_size=3),
)
def test_no_chain_of_creations_ever_has_more_than_any_of_those_above(
    made: list[tuple[int, dict[str, Any]]], lowered: list[tuple[int, dict[str, Any]]]
) -> None:
    """Keys are made below any earlier one as far as that is allowed; then some get other caps, as an operator may
    give them at any time."""
    rows: list[StoredKey] = []
    for number, (below, caps) in enumerate(made):
        known = tenants(*rows)
        maker = rows[below % len(rows)].name if rows and below < 8 else None
        try:
            key = key_of(f"k{number}", digest(f"k{number}"), caps)
            known.check(caps, key, maker)
        except BadKey:
            continue
        if maker is not None:
            requested = {field: getattr(key, field) for field in caps if field not in {"policy", "locked"}}
            top = known.effective(maker)
            # What was let pass is within the maker's caps as requested, before anything is capped.
            assert within(top.model_copy(update=requested), top)
        rows.append(stored(key.name, maker, **caps))
    for at, caps in lowered:
        if rows and not (caps.get("locked") and "policy" not in caps):
            old = rows[at % len(rows)]
            rows[at % len(rows)] = stored(old.name, old.maker, **caps)
    known = tenants(*rows)
    for row in rows:
        key = known.effective(row.name)
        chain = known.chain(row.name)
        assert len(chain) <= MAX_DEPTH
        for above in chain[1:]:
            assert within(key, known.effective(above.name))
            assert within(key, above.settings.model_copy(update={"locked": False}))
        names = [tenant.name for tenant in chain]
        account = known.account(row.name)
        assert [purse.key for purse in account.key_budgets] == names
        for field, buckets in (
            ("requests_per_minute", account.requests),
            ("tokens_per_minute", account.tokens),
        ):
            rates = [getattr(tenant.settings, field) for tenant in chain]
            assert [bucket.capacity for bucket in buckets] == [rate for rate in rates if rate is not None]


# --- a row that cannot hold -------------------------------------------------------------------------------
@given(
    st.dictionaries(
        st.sampled_from(SETTINGS),
        st.one_of(
            st.integers(),
            st.floats(),
            st.sampled_from([10**400, -(10**400), 1 << 53, 1e308, 5e-324, True, "x", None]),
        ),
        max_size=4,
    )
)
@example({"requests_per_minute": 10**400})
@example({"max_concurrency": 10**400, "max_priority": -(10**400)})
def test_whatever_a_holder_asks_for_others_go_on(requested: dict[str, Any]) -> None:
    """A key that can be made has terms and an account that can be computed: every gateway does so for all keys at once,
    so one that cannot would stop all of them from hearing of any key."""
    try:
        key = key_of("made", digest("made"), requested)
        tenants(file=(configured("top", makes_keys=True),)).check(requested, key, "top")
    except BadKey:
        pass
    known = tenants(stored("made", "top", **requested), file=(configured("top", makes_keys=True),))
    for tenant in known:
        account = known.account(tenant.name)
        known.effective(tenant.name)
        for bucket in (*account.requests, *account.tokens):
            assert 0 < bucket.refill_per_s < float("inf")
    assert known.alive("top")


def test_a_model_is_named_once() -> None:
    """What a holder writes is read by all gateways, each time that a key changes."""
    known = tenants(file=(configured("top", makes_keys=True),))
    assert refused(known, "top", models=["a"] * 20_000).field == "models"


def test_rows_that_have_not_changed_are_not_read_again() -> None:
    before = Tenants((), [stored("a"), stored("b")])
    after = Tenants((), [stored("a"), stored("b", revoked=True)], before=before)
    assert after["a"].settings is before["a"].settings
    assert [after.alive("a"), after.alive("b")] == [True, False]


def test_a_change_counts_for_its_key_and_those_below_it_alone() -> None:
    fleet = loads("models: [{name: m}]\ninstances: []")
    rows = [stored("top"), stored("mid", "top"), stored("low", "mid"), stored("other", "top"), stored("gone")]
    before = Rules.of(fleet, (), rows)
    mid, gone = stored("mid", "top", max_priority=2, budget_usd=5.0), stored("gone", revoked=True)
    rows = [rows[0], mid, *rows[2:4], gone, stored("new", "low")]
    after, anew = before.with_keys(rows), Rules.of(fleet, (), rows)
    assert str(after.working) == str(anew.working)
    found = [after.keys.authenticate(b"Bearer " + name) for name in (b"top", b"low", b"new")]
    assert found == ["top", "low", "new"]
    same = {name for name, key in after.working.items() if key is before.working.get(name)}
    assert same == {"top", "other"}


def test_only_keys_that_work_have_budgets_in_the_metrics() -> None:
    rows = [stored("gone", revoked=True, budget_usd=5.0), stored("live", budget_usd=5.0)]
    rules = Rules.of(loads("models: [{name: m}]\ninstances: []"), (), rows)
    accounts = [each.account for each in rules.working.values()]
    assert list(budget_levels(accounts, MemoryState())) == [("live", "total", 0.0, 5.0)]
