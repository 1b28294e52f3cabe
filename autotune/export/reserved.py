"""Words that no name in an exported header may be. Knows nothing else."""

#: C++20, alternative spellings included, and what GNU mode defines.
_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
    char32_t class compl concept const consteval constexpr constinit const_cast continue
    co_await co_return co_yield decltype default delete do double dynamic_cast else enum
    explicit export extern false float for friend goto if inline int long mutable namespace new
    noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct
    switch template this thread_local throw true try typedef typeid typename union unsigned
    using virtual void volatile wchar_t while xor xor_eq linux unix
"""

#: Names that the header uses itself.
_HEADER = """
    allows apart arch arch_groups archs asked block both ceil_div condition config config_of
    cost_plans detail device devices distance elsewhere estimate exact_row exact_rows examined
    exclusive expected_fraction extent extent_of fastest fits floor_div found generations_apart grid
    grid_of group hit in_waves is_extent largest lookup maximum met minimum near_row near_rows
    number number_of_cost number_of_plan pick place place_of plan plans prediction predictions
    problem product_fits quality requires_met roots shape shared_bytes sixteenths sum_fits
    time_of unless_multiple which
"""

RESERVED = frozenset(f"{_KEYWORDS} {_HEADER}".split())
