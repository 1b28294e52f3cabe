"""Configurations and problems: equal by content, immutable, readable as attributes."""

import copy
import pickle

import pytest

from autotune.values import Configuration, Problem


def test_equality_and_hash_do_not_depend_on_the_order_of_names():
    first, second = Configuration(BM=64, BN=32), Configuration(BN=32, BM=64)
    assert first == second
    assert hash(first) == hash(second)
    assert {first: "kept"}[second] == "kept"


@pytest.mark.parametrize(
    "other", [Configuration(BM=64), Configuration(BM=64, BN=33), Configuration(BM=64, BN=32, X=1)]
)
def test_a_missing_another_or_a_further_value_makes_it_unequal(other):
    assert Configuration(BM=64, BN=32) != other


def test_it_equals_a_plain_dict_and_nothing_that_is_no_mapping():
    assert Problem(m=1) == {"m": 1}
    assert Problem(m=1) != (("m", 1),)


def test_values_are_attributes_and_an_unknown_name_lists_the_known():
    configuration = Configuration({"BM": 64}, VARIANT="portable")
    assert (configuration.BM, configuration.VARIANT) == (64, "portable")
    with pytest.raises(AttributeError, match=r"unknown parameter 'BMM' \(known: BM, VARIANT\)"):
        configuration.BMM  # noqa: B018
    with pytest.raises(AttributeError, match=r"unknown problem field 'k' \(known: m\)"):
        Problem(m=1).k  # noqa: B018


def test_nothing_can_be_assigned():
    configuration = Configuration(BM=64)
    with pytest.raises(AttributeError, match="immutable"):
        configuration.BM = 32
    with pytest.raises(TypeError):
        configuration["BM"] = 32
    assert configuration.BM == 64


def test_it_does_not_share_the_mapping_it_was_made_from():
    values = {"BM": 64}
    configuration = Configuration(values)
    values["BM"] = 32
    assert configuration.BM == 64


def test_replace_makes_another_one_of_the_same_kind():
    configuration = Configuration(BM=64, BN=32)
    assert configuration.replace(BN=16) == Configuration(BM=64, BN=16)
    assert type(configuration.replace(BN=16)) is Configuration
    assert configuration.BN == 32


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))]
)
def test_copies_are_equal_in_value_kind_and_hash(again):
    """A configuration crosses to the worker process and must be the same key there and back."""
    original = Configuration(UNROLL=True, BM=64, VARIANT="portable")
    hash(original)
    copied = again(original)
    assert (copied, type(copied), hash(copied)) == (original, Configuration, hash(original))
    assert copied.UNROLL is True
    assert list(copied) == list(original)


def test_canonical_json_is_the_same_for_equal_values_and_keeps_types():
    assert Configuration(B=1, A="x").canonical_json() == '{"A":"x","B":1}'
    assert Configuration(A="x", B=1).canonical_json() == '{"A":"x","B":1}'
    assert Configuration(A=True).canonical_json() != Configuration(A=1).canonical_json()


def test_text_for_a_person_keeps_the_order_and_writes_truth_as_a_number():
    assert str(Configuration(B=64, A=True, V="x")) == "B=64, A=1, V=x"
    assert repr(Problem(m=1)) == "Problem(m=1)"


def test_fields_named_like_the_first_argument_are_fields():
    assert dict(Problem({"m": 1}, values=2)) == {"m": 1, "values": 2}
