"""The built-in corpus: deterministic, disjoint splits, correct language."""

import datetime
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import islice, permutations, product
from random import Random

import pytest

from anydepth.data.builtin import LABELS, LANGUAGES, SPLITS, labelled, monolingual, pairs
from anydepth.data.builtin.drawing import CITIES, CURRENCIES, KINDS, LANGUAGE_NAMES, TERRITORIES, draw
from anydepth.data.builtin.meaning import (
    Clause,
    Clock,
    Day,
    FromNow,
    Listing,
    Meaning,
    Name,
    Number,
    Quantity,
    Sentence,
    split_of,
)
from anydepth.data.builtin.numerals import LIMIT, cardinal
from anydepth.data.builtin.phrases import TEMPLATES
from anydepth.data.builtin.rendering import render
from anydepth.errors import UserError

NOT_LANGUAGE = re.compile(r"[{}_]|None|True|False|\b(length|mass|temperature)-|  |\.\.|\u00a0|\u202f")


def say(language: str, frame: str | None, *parts: Meaning, swap: bool = False) -> str:
    return render(language, Sentence("number", (Clause(frame, parts),), (), False), swap=swap)


def names(of: str, codes: str) -> tuple[Name, ...]:
    return tuple(Name(of, code) for code in codes.split())  # type: ignore[arg-type]


def test_has_english_and_at_least_twelve_others() -> None:
    assert {"en", "de", "fr", "es", "it", "pt", "nl", "pl", "cs", "tr", "ru", "uk", "fi"} <= set(LANGUAGES)


def test_the_text_depends_on_the_seed_alone() -> None:
    assert list(pairs("en", "de", "train", 50, seed=3)) == list(pairs("en", "de", "train", 50, seed=3))
    assert not set(pairs("en", "de", "train", 50, seed=3)) & set(pairs("en", "de", "train", 50, seed=4))


def test_a_smaller_corpus_is_the_beginning_of_a_larger_one() -> None:
    assert list(pairs("fr", "nl", "dev", 20)) == list(islice(pairs("fr", "nl", "dev", 1_000_000), 20))


def test_the_machine_does_not_matter() -> None:
    program = "from anydepth.data.builtin import pairs; print(*pairs('en', 'sv', 'test', 40), sep='\\n')"
    far_away = os.environ | {
        "LC_ALL": "tr_TR.UTF-8",
        "LANGUAGE": "ar",
        "TZ": "Pacific/Kiritimati",
        "PYTHONHASHSEED": "7",
    }
    output = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", program], env=far_away, capture_output=True, text=True, check=True
    ).stdout
    assert output.splitlines() == [str(pair) for pair in pairs("en", "sv", "test", 40)]


@pytest.mark.parametrize("size", [0, 1, 77])
def test_sizes_are_exact(size: int) -> None:
    assert len(list(pairs("en", "fi", "train", size))) == size
    assert len(list(monolingual("fi", "dev", size))) == size
    assert len(list(labelled("fi", "test", size))) == size


def test_the_three_forms_are_one_corpus() -> None:
    sources = [source for source, _ in pairs("cs", "tr", "train", 30)]
    assert list(monolingual("cs", "train", 30)) == sources
    assert [text for _, text in labelled("cs", "train", 30)] == sources


def test_every_pair_of_languages_is_language() -> None:
    for source, target in permutations(LANGUAGES, 2):
        for text in (text for pair in pairs(source, target, "dev", 4) for text in pair):
            assert text.strip() == text != ""
            assert not NOT_LANGUAGE.search(text), text


def test_labels_are_balanced() -> None:
    counts = Counter(label for label, _ in labelled("en", "train", 400))
    assert counts == dict.fromkeys(LABELS, 50)
    assert len(LABELS) >= 6


def test_what_is_in_brackets_does_not_decide_the_label() -> None:
    """Every label occurs with asides of every other kind, so that no heading gives it away."""
    seen = defaultdict(set)
    rng = Random(5)
    for kind in KINDS * 400:
        seen[kind] |= {aside.frame for aside in draw(rng, kind).asides}
    assert all(len(frames) > 20 for frames in seen.values())


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_is_in_two_splits(language: str) -> None:
    # short sentences are the ones that could coincide, so they are drawn on purpose
    splits: dict[str, set[str]] = defaultdict(set)
    for sentence in (draw(rng, kind) for rng in [Random(11)] for _ in range(50) for kind in KINDS):
        short = Sentence(sentence.kind, sentence.clauses[:1], (), False)
        for shown, swap in product((sentence, short), (False, True)):
            splits[render(language, shown, swap=swap)].add(split_of(shown))
    assert all(len(where) == 1 for where in splits.values())
    assert {split for where in splits.values() for split in where} == set(SPLITS)


def test_no_source_or_target_is_in_two_splits_whatever_the_seeds() -> None:
    sides: dict[str, set[str]] = {}
    for split in SPLITS:
        drawn = [pair for seed in (1, 2, 3) for pair in pairs("es", "pt", split, 150, seed)]
        sides[split] = {text for pair in drawn for text in pair}
        assert len(sides[split]) > 850
    assert not sides["train"] & sides["test"]
    assert not sides["train"] & sides["dev"]
    assert not sides["dev"] & sides["test"]


def test_the_way_of_putting_it_does_not_change_the_split() -> None:
    day = datetime.date(2031, 5, 17)
    for number in range(50):
        said = [
            Sentence(
                "number", (Clause("result", (Number(number, True),)),), (Clause("date", (Day(day, words),)),), first
            )
            for words in (True, False)
            for first in (True, False)
        ]
        said.append(
            Sentence("date", (Clause(None, (Number(number, False),)), Clause("deadline", (Day(day, True),))), (), True)
        )
        assert len({split_of(sentence) for sentence in said}) == 1


@pytest.mark.parametrize("language", LANGUAGES)
def test_different_things_have_different_names(language: str) -> None:
    things: list[Meaning] = [*names("territory", " ".join(TERRITORIES)), *names("city", " ".join(CITIES))]
    things += [Quantity(currency, 5, False) for currency in CURRENCIES]
    texts = [say(language, None, thing) for thing in things]
    texts += [say(language, "languages", Listing(names("language", code))) for code in LANGUAGE_NAMES]
    assert [text for text, count in Counter(texts).items() if count > 1] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_different_numbers_have_different_words(language: str) -> None:
    numbers = {*range(1100), *range(0, LIMIT, 3_001), *range(1, LIMIT, 5_000)}
    assert len({cardinal(language, number) for number in numbers}) == len(numbers)


@pytest.mark.parametrize(
    ("language", "number", "words"),
    [
        ("en", 234_567, "two hundred and thirty-four thousand five hundred and sixty-seven"),
        ("en", 4_005, "four thousand and five"),
        ("de", 101_021, "einhunderteintausendeinundzwanzig"),
        ("fr", 280_071, "deux cent quatre-vingt mille soixante et onze"),
        ("es", 21_101, "veintiún mil ciento uno"),
        ("es", 141_500, "ciento cuarenta y un mil quinientos"),
        ("it", 1_023, "milleventitré"),
        ("it", 5_003, "cinquemilatré"),
        ("pt", 16_200, "dezesseis mil e duzentos"),
        ("nl", 2_101, "tweeduizend honderdeen"),
        ("sv", 21_300, "tjugoettusen trehundra"),
        ("pl", 22_215, "dwadzieścia dwa tysiące dwieście piętnaście"),
        ("cs", 2_543, "dva tisíce pět set čtyřicet tři"),
        ("ru", 42_091, "сорок две тысячи девяносто один"),
        ("uk", 9_050, "девʼять тисяч пʼятдесят"),
        ("fi", 21_345, "kaksikymmentäyksituhatta kolmesataaneljäkymmentäviisi"),
        ("hu", 22_002, "huszonkétezer-kettő"),
        ("tr", 141_200, "yüz kırk bir bin iki yüz"),
    ],
)
def test_numbers_in_words(language: str, number: int, words: str) -> None:
    assert cardinal(language, number) == words


def test_only_numbers_under_a_million() -> None:
    with pytest.raises(ValueError, match="999999"):
        cardinal("en", LIMIT)


def test_figures_on_one_side_are_words_on_the_other() -> None:
    amount = Quantity("USD", 4_023, words=False)
    assert say("en", "price", amount) == "The price is 4,023 US dollars."
    assert say("de", "price", amount, swap=True) == "Der Preis beträgt viertausenddreiundzwanzig US-Dollar."
    assert say("ru", "price", amount, swap=True) == "Цена – четыре тысячи двадцать три доллара США."
    assert say("pl", "price", amount) == "Cena wynosi 4 023 dolary amerykańskie."
    assert say("pt", "price", amount, swap=True) == "O preço é de quatro mil e vinte e três dólares americanos."
    decimals = Quantity("EUR", 17.35, words=None)
    assert say("en", "price", decimals) == say("en", "price", decimals, swap=True) == "The price is 17.35 euros."
    assert say("cs", "price", decimals) == "Cena je 17,35 eura."


def test_dates() -> None:
    first, last = Day(datetime.date(2024, 5, 23), True), Day(datetime.date(2025, 3, 4), True)
    assert say("en", "exhibition", first, last) == "The exhibition runs from May 23, 2024 to March 4, 2025."
    assert say("hu", "exhibition", first, last) == "A kiállítás 2024. május 23. és 2025. március 4. között látogatható."
    assert say("ru", "deadline", first) == "Срок истекает 23 мая 2024 г."
    assert say("fi", "deadline", first) == "Määräaika päättyy 23. toukokuuta 2024."
    assert say("en", "deadline", first, swap=True) == "The deadline is 5/23/2024."
    assert say("de", "deadline", first, swap=True) == "Die Frist endet am 23.5.2024."


def test_times() -> None:
    time = Clock(14, 45, True)
    assert say("en", "clock", time) == "Time: fourteen forty-five."
    assert say("en", "clock", time, swap=True) == "Time: 2:45 PM."
    assert say("de", "clock", time) == "Uhrzeit: vierzehn Uhr fünfundvierzig."
    assert say("es", "clock", time) == "Hora: catorce horas y cuarenta y cinco minutos."
    assert say("pl", "clock", time) == "Godzina: czternasta czterdzieści pięć."
    assert say("uk", "clock", time) == "Час: чотирнадцята година сорок пʼять хвилин."
    assert say("fi", "clock", time, swap=True) == "Kellonaika: 14.45."
    leaves, arrives = Clock(9, 5, None), Clock(17, 30, None)
    for swap in (False, True):
        assert say("nl", "train", leaves, arrives, swap=swap) == "De trein vertrekt om 09:05 en komt om 17:30 aan."


def test_durations_and_measures() -> None:
    duration = Listing((Quantity("hour", 3, True), Quantity("minute", 25, True)))
    assert say("cs", "journey", duration) == "Cesta trvá tři hodiny a dvacet pět minut."
    assert say("tr", "journey", duration) == "Yolculuk üç saat ve yirmi beş dakika sürüyor."
    assert say("nl", "journey", duration, swap=True) == "De reis duurt 3 uur en 25 minuten."
    assert say("it", "begins", FromNow("day", 5)) == "La riunione comincia tra 5 giorni."
    assert say("sv", "ended", FromNow("hour", -90)) == "Mötet slutade för 90 timmar sedan."
    length = Quantity("length-kilometer", 23, True)
    assert say("uk", "distance", length) == "Відстань становить двадцять три кілометри."
    assert say("fr", "distance", Quantity("length-meter", 4.5, None)) == "La distance est de 4,5 mètres."


def test_lists() -> None:
    countries = names("territory", "FI GB IT")
    assert say("en", "countries", Listing(countries)) == "Countries: Finland, United Kingdom, and Italy."
    assert say("fr", "countries", Listing(countries)) == "Pays : Finlande, Royaume-Uni et Italie."
    assert say("es", "countries", Listing(countries)) == "Países: Finlandia, Reino Unido e Italia."
    assert (
        say("de", "destinations", Listing(countries, "or"))
        == "Reiseziele: Finnland, Vereinigtes Königreich oder Italien."
    )
    assert say("cs", "countries", Listing(countries[::2])) == "Země: Finsko a Itálie."
    assert say("ru", "route", Listing(names("city", "Europe/Rome Asia/Tokyo"), "dash")) == "Маршрут: Рим – Токио."
    assert say("es", "answer", Listing((Number(7, True), Number(8, True)), "or")) == "La respuesta es siete u ocho."
    assert say("tr", None, Listing((Number(2, True), Number(3, True)), "dash")) == "İki – üç."


def test_asides_stand_in_brackets() -> None:
    main = Clause("deadline", (Day(datetime.date(2024, 5, 23), True),))
    asides = (Clause(None, (Listing(names("language", "fi mt"), "or"),)), Clause("begins", (FromNow("week", 3),)))
    assert render("ru", Sentence("date", (main,), asides, False)) == (
        "Срок истекает 23 мая 2024 г. (финский или мальтийский; Собрание начнётся через 3 недели)."
    )
    assert render("fr", Sentence("date", (main,), asides, True)) == (
        "(finnois ou maltais ; La réunion commence dans 3 semaines) La date limite est le 23 mai 2024."
    )


def test_every_language_has_every_phrase_with_the_same_slots() -> None:
    slots = {name: sorted(re.findall(r"{\d}", template)) for name, template in TEMPLATES["en"].items()}
    for templates in TEMPLATES.values():
        assert {name: sorted(re.findall(r"{\d}", template)) for name, template in templates.items()} == slots
        assert len(set(templates.values())) == len(templates)


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match=r"no language 'deu'.*did you mean 'de'"):
        pairs("en", "deu", "train", 1)
    with pytest.raises(UserError, match=r"no split 'tests'.*did you mean 'test'"):
        monolingual("en", "tests", 1)
    with pytest.raises(UserError, match="negative"):
        labelled("en", "train", -1)
