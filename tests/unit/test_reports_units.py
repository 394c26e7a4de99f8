import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.reports.units import count, duration, measure, percent, plural, printable, size


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 s"),
        (7, "7.00 ns"),
        (1_500, "1.50 us"),
        (640_000, "640 us"),
        (999_960, "1,000 us"),
        (12_340_000, "12.3 ms"),
        (78_900_000_000, "78.9 s"),
        (119_000_000_000, "119 s"),
        (120_000_000_000, "2.00 min"),
        (7_200_000_000_000, "2.00 h"),
        (-1_500_000, "-1.50 ms"),
    ],
)
def test_a_duration_has_its_natural_unit(ns: int, text: str) -> None:
    assert duration(ns) == text


def test_counts_shares_and_sizes() -> None:
    assert [count(n) for n in (0, 99_999, 1_204_331, 2_000_000_000)] == ["0", "99,999", "1.20 M", "2.00 G"]
    assert [percent(p) for p in (0, 0.01, 0.1, 41.23, 99.94, 100)] == [
        "0.0 %", "< 0.1 %", "0.1 %", "41.2 %", "99.9 %", "100 %",
    ]  # fmt: skip
    assert [size(b) for b in (0, 1023, 1536, 3 << 30)] == ["0 B", "1023 B", "1.50 KiB", "3.00 GiB"]
    assert [measure(*m) for m in ((5e9, "ns"), (2.5, "s"), (71.04, "%"), (14, "threads"), (0.25, "CPUs"))] == [
        "5.00 s", "2.50 s", "71.0 %", "14 threads", "0.25 CPUs",
    ]  # fmt: skip
    assert (plural(1, "thread"), plural(2, "thread")) == ("1 thread", "2 threads")


def test_what_could_steer_a_terminal_is_escaped_and_letters_are_not() -> None:
    assert printable("a\x1b[31mb\x00\n\x9b") == "a\\x1b[31mb\\x00\\x0a\\x9b"
    assert printable("x\u202ey\u2028\udcff\ufeff") == "x\\u202ey\\u2028\\udcff\\ufeff"
    kept = "naïve e\u0301 שלום 名前 🔥 👩\u200d💻 <b>&amp; \u00a0"
    assert printable(kept) == kept


@given(st.text())
def test_printable_text_is_one_line_that_encodes(text: str) -> None:
    safe = printable(text)
    safe.encode("utf-8")
    assert "\x1b" not in safe
    assert len(safe.splitlines()) <= 1
