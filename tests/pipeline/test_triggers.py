"""One grammar for what expands a budget: the text of configs, commands, requests and answers."""

import pytest
from configs import point
from hypothesis import given
from hypothesis import strategies as st

import utaca
from utaca.decoding.triggers import Agreement, Every, Margin, trigger_of
from utaca.settings import schema
from utaca.settings.checks import build
from utaca.settings.triggers import KINDS, TriggerSetting, as_written, parse

WRITTEN = {
    "": TriggerSetting("detector", ""),
    "detector": TriggerSetting("detector", ""),
    "detector.utaca": TriggerSetting("detector", "utaca"),
    "two_way": TriggerSetting("detector", "two_way"),
    "margin_only": TriggerSetting("detector", "margin_only"),
    "runs/margin/model.safetensors": TriggerSetting("detector", "runs/margin/model.safetensors"),
    "margin.safetensors": TriggerSetting("detector", "margin.safetensors"),
    "margin": TriggerSetting("margin", None),
    "margin.2.5": TriggerSetting("margin", 2.5),
    "margin.0": TriggerSetting("margin", 0.0),
    "agreement": TriggerSetting("agreement", None),
    "agreement.4": TriggerSetting("agreement", 4),
    "every.40": TriggerSetting("every", 40),
    "never": TriggerSetting("never", None),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_a_text_means_a_kind_and_a_value(text: str) -> None:
    assert parse(text) == WRITTEN[text]
    assert parse(str(WRITTEN[text])) == WRITTEN[text]


@pytest.mark.parametrize(
    "text", ["every", "every.0", "every.x", "every.1.5", "never.3", "agreement.0", "margin.x", "margin."]
)
def test_a_text_that_begins_as_another_kind_is_no_name_of_a_detector(text: str) -> None:
    with pytest.raises(ValueError, match=f"{text!r} is not a trigger; write {text.partition('.')[0]}"):
        parse(text)


VALUES = {
    "detector": st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True).filter(lambda name: name not in KINDS),
    "margin": st.none() | st.integers(0, 10**6).map(lambda number: number / 8),
    "agreement": st.none() | st.integers(1, 10**6),
    "every": st.integers(1, 10**6),
    "never": st.none(),
}


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.builds(TriggerSetting, st.just(kind), VALUES[kind])))
def test_what_is_written_is_read_again(setting: TriggerSetting) -> None:
    assert parse(str(setting)) == setting


def test_a_setting_is_the_trigger_of_its_kind() -> None:
    texts = {"margin.2.5": Margin(2.5), "agreement": Agreement(), "agreement.4": Agreement(4), "every.3": Every(3)}
    for text, expected in (texts | {"never": Every(0)}).items():
        assert trigger_of(parse(text)) == expected
    with pytest.raises(utaca.UserError, match=r"Detected needs a utaca\.Detector"):
        trigger_of(parse("utaca"))


def test_a_point_holds_its_trigger_as_a_value_and_is_written_with_its_text() -> None:
    of = point("utaca", 8, "sub.2", "every.40")
    assert of.trigger == TriggerSetting("every", 40)
    assert (of.family, of.detected, of.detector) == ("no_detector", False, "")
    plain = as_written(of)
    assert plain["trigger"] == "every.40"
    assert build(schema.OperatingPoint, plain) == of
    assert {kind: point("utaca", 8, "sub.2", kind if kind != "every" else "every.2").family for kind in KINDS} == {
        "detector": "utaca",
        "margin": "margin",
        "agreement": "agreement",
        "every": "no_detector",
        "never": "no_detector",
    }
