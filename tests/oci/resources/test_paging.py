import base64
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.oci.errors import OciError
from headrace.oci.resources.paging import Key, Page, page_of

numbers = st.lists(st.tuples(st.integers(0, 5), st.text("abc", min_size=1, max_size=3)), unique_by=lambda item: item[1])
orders = st.sampled_from(["ASC", "DESC"])


def key(item: tuple[int, str]) -> Key:
    return item


def page(items: list[tuple[int, str]], order: str, limit: int | None, token: str | None) -> Page[tuple[int, str]]:
    return page_of(items, key, "TIMECREATED", order, limit, token)  # type: ignore[arg-type]


@given(numbers, orders, st.integers(1, 4))
def test_pages_forwards_and_backwards_have_everything_once_in_order(
    items: list[tuple[int, str]], order: str, limit: int
) -> None:
    expected = sorted(items, reverse=order == "DESC")
    pages = [page(items, order, limit, None)]
    assert pages[0].preceding is None
    while (token := pages[-1].following) is not None:
        pages.append(page(items, order, limit, token))
    assert [item for each in pages for item in each.items] == expected
    assert all(len(each.items) == limit for each in pages[:-1])
    back = pages[-1]
    for before in reversed(pages[:-1]):
        assert back.preceding is not None
        back = page(items, order, limit, back.preceding)
        assert back.items == before.items


@given(numbers, numbers, orders, st.integers(1, 4))
def test_concurrent_additions_neither_duplicate_nor_hide_entries(
    items: list[tuple[int, str]], more: list[tuple[int, str]], order: str, limit: int
) -> None:
    known = {name for _, name in items}
    more = [item for item in more if item[1] not in known]
    seen = []
    token: str | None = None
    now = items
    while True:
        found = page(now, order, limit, token)
        seen += found.items
        token, now = found.following, items + more
        if token is None:
            break
    assert len(seen) == len(set(seen))
    assert [item for item in seen if item in items] == sorted(items, reverse=order == "DESC")


def test_the_last_item_of_a_page_may_have_gone() -> None:
    items = [(number, "x") for number in range(6)]
    first = page(items, "ASC", 2, None)
    assert first.following is not None
    assert page(items[2:], "ASC", 2, first.following).items == items[2:4]
    assert page([], "ASC", 2, first.following).headers == {}


def test_ten_are_a_page() -> None:
    items = [(number, "x") for number in range(25)]
    first = page(items, "DESC", None, None)
    assert first.items == items[:14:-1]
    assert set(first.headers) == {"opc-next-page"}
    assert set(page(items, "DESC", None, first.following).headers) == {"opc-next-page", "opc-prev-page"}
    assert len(page(items, "DESC", None, page(items, "DESC", None, first.following).following).items) == 5


LONG = ("x" * 701, "\x01" * 117, "\U0001f600" * 176, "y" * 1024, "\x01" * 1024, "z" * 600)


def test_a_name_of_any_length_has_room_in_a_token() -> None:
    items = [(name + end, id_.hex) for name in LONG for end in "ba" for id_ in (uuid4(), uuid4())]
    seen: list[tuple[str, str]] = []
    token: str | None = None
    while True:
        found = page_of(items, lambda item: item, "NAME", "DESC", 1, token)
        seen += found.items
        assert all(len(each) <= 1024 for each in found.headers.values())
        token = found.following
        if token is None:
            break
    assert sorted(seen) == sorted(items)
    whole = {each for each in items if each[0][0] == "z"}
    assert [each for each in seen if each in whole] == sorted(whole, reverse=True)


def forged(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "ü",
        "a" * 1024,
        forged(b""),
        forged(b"null"),
        forged(b"[]"),
        forged(b'["TIMECREATED ASC",true,["a","b"]]'),
        forged(b'["TIMECREATED ASC",true,[1]]'),
        forged(b'["TIMECREATED ASC",1,[1,"b"]]'),
        forged(b'["NAME ASC",true,["a","b"]]'),
        forged(b'["TIMECREATED DESC",true,[1,"b"]]'),
    ],
)
def test_an_invalid_page_token_is_refused(token: str) -> None:
    with pytest.raises(OciError) as caught:
        page([(1, "a"), (2, "b")], "ASC", 1, token)
    assert (caught.value.status, caught.value.code) == (400, "InvalidParameter")
    assert "page" in caught.value.message
