"""The report's part that compares several runs."""

from anydepth.evaluation import page as parts
from anydepth.evaluation import plots
from anydepth.evaluation.cells import best, deepest, depth_name, telling_depths
from anydepth.evaluation.page import Page
from anydepth.evaluation.records import Record
from anydepth.evaluation.samples import choose_samples

TestSet = tuple[list[str], list[str]]


def compare(page: Page, bootstrap_samples: int) -> None:
    """Fill the page with what its runs have in common and what tells them apart."""
    page.differences = _differing_settings(page.records)
    page.measured = measured = [record for record in page.records if record.grid]
    if len(measured) < 2:
        return
    by_depth = [{depth_name(cell): cell for cell in record.cells} for record in measured]
    shared = [depth for depth in by_depth[0] if all(depth in cells for cells in by_depth)]
    rows = [("deepest of each", [deepest(record.cells) for record in measured])]
    rows += [(depth, [cells[depth] for cells in by_depth]) for depth in shared]
    colors = {record.name: plots.SERIES[i % len(plots.SERIES)] for i, record in enumerate(page.records)}
    page.tradeoffs = parts.tradeoffs(
        [plots.Series(record.name, record.cells, colors[record.name]) for record in measured]
    )
    test_set = _common_test_set(measured)
    comparable = test_set and not _differ(measured, "signatures")
    page.rows = [(name, row, best(row) if comparable else None) for name, row in rows]
    page.incomparable = _incomparable(measured, test_set)
    if test_set:
        depths = [depth for depth in telling_depths(measured[0].cells) if depth in shared]
        page.significance = _significance(measured, test_set, depths, bootstrap_samples)
        page.samples = _samples(measured, test_set)


def _common_test_set(records: list[Record]) -> TestSet | None:
    first, *others = (record.test_set() for record in records)
    return first if all(other == first for other in others) else None


def _incomparable(records: list[Record], test_set: TestSet | None) -> list[str]:
    """What must be said before the numbers of these runs are read side by side."""
    reasons = []
    if not test_set:
        reasons.append(
            "The runs were not evaluated on the same test set, or their outputs were not kept: their scores cannot be"
            " compared, and there is no significance test."
        )
    if _differ(records, "signatures"):
        reasons.append("The scores were computed differently: see their signatures below.")
    if _differ(records, "beam"):
        reasons.append("The runs were decoded with different beams.")
    if _differ(records, "device", "machine", "batch"):
        reasons.append("Seconds were measured on different machines or with different batches: do not compare them.")
    return reasons


def _differ(records: list[Record], *keys: str) -> bool:
    return len({str([record.grid.get(key) for key in keys]) for record in records if record.grid}) > 1


def _significance(records: list[Record], test_set: TestSet, depths: list[str], samples: int) -> list[dict[str, object]]:
    """All runs against the first: each at its deepest, then all at the same depths."""
    full = [record.deepest for record in records]
    names = ", ".join(dict.fromkeys(full))
    wanted = [(f"each at its deepest: {names}", full)]
    wanted += [(depth, [depth] * len(records)) for depth in depths if depth != names]
    tables = []
    for heading, each in wanted if samples else ():
        found = [record.outputs([depth]) for record, depth in zip(records, each)]
        if all(found):
            systems = {record.name: outputs[depth] for record, outputs, depth in zip(records, found, each)}
            tables.append(parts.significance(heading, systems, records[0], test_set[1], samples))
    return tables


def _samples(records: list[Record], test_set: TestSet) -> list[dict[str, object]]:
    """Sentences at the deepest depth of every run; the others are held against the first."""
    found = {record.name: record.outputs([record.deepest]).get(record.deepest) for record in records}
    outputs = {name: texts for name, texts in found.items() if texts}
    if len(outputs) < 2:
        return []
    names = list(outputs)
    return [parts.sample(chosen, names, names[0], names) for chosen in choose_samples(*test_set, outputs)]


def _differing_settings(records: list[Record]) -> list[tuple[str, list[str]]]:
    settings = [record.settings() for record in records]
    names = sorted({name for one in settings for name in one})
    rows = [(name, [one.get(name, "") for one in settings]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]
