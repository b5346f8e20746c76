"""The certificate of one checkpoint: every check by level, and what was not shown; as JSON and as a
page.
"""

import html
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokencodes.checkpoint import find, load_model
from tokencodes.errors import CodeMismatch, pass_on_interruption
from tokencodes.files import read_json
from tokencodes.verify import forward, identity, runtime, structure
from tokencodes.verify.check import MEASURED, PROVEN, Check, Subject, check, not_shown

LEVELS = {
    "L0": "the code",
    "L1": "configuration and tensors",
    "L2": "against the independent reference, float64",
    "L3": "production dtype",
    "L4": "decoding",
    "L5": "replay of training",
}
NOT_SHOWN = (
    not_shown(
        "L2",
        "other inputs",
        "equality with the reference is measured on the ids tried, not proven for all",
    ),
    not_shown("L3", "other devices", "everything here ran on this machine's processor"),
    not_shown(
        "L1",
        "trained weights",
        "in an exported folder alone, a changed weight shows only where L5 replays it",
    ),
    not_shown(
        "L5",
        "training as a whole",
        "one step's loss is replayed; that all earlier ones were right is not",
    ),
)


@dataclass(frozen=True)
class Certificate:
    """What `verify` found."""

    checkpoint: str
    interface: str
    vocab_size: int
    hidden_size: int
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether no check failed."""
        return all(check.status != "fails" for check in self.checks)

    @property
    def failed(self) -> list[Check]:
        """The checks that do not hold."""
        return [check for check in self.checks if check.status == "fails"]

    def as_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {**asdict(self), "holds": self.holds}


def certify(path: Path) -> Certificate:
    """Runs every check on a run, a checkpoint or an exported folder; InputError if it cannot be
    read at all.
    """
    place = find(path)
    try:
        model = load_model(place)
    except CodeMismatch as error:
        values = read_json(place / "config.json")
        failed = check("L0", "codebook regenerated", PROVEN, False, str(error))
        rest = not_shown(
            "L1", "everything else", "the model is not loaded with a code that is not its own"
        )
        return Certificate(
            str(place),
            values["interface"],
            values["vocab_size"],
            values["hidden_size"],
            (failed, rest),
        )
    config = model.config
    return Certificate(
        str(place),
        config.interface,
        config.vocab_size,
        config.hidden_size,
        tuple(run_checks(Subject(model, place))),
    )


def run_checks(subject: Subject) -> list[Check]:
    """Every check of every level, in order, then what is not shown."""
    groups = {
        "L0": identity.CHECKS,
        "L1": structure.CHECKS,
        "L2": (*forward.CHECKS, forward.modules),
        **runtime.CHECKS,
    }
    results: list[Check] = []
    for level, checks in groups.items():
        for run in checks:
            try:
                result = run(subject)
            except Exception as error:  # a model that breaks a check has not passed it
                pass_on_interruption(error)
                first = (str(error).splitlines() or [""])[0]
                result = check(
                    level,
                    run.__name__.replace("_", " "),
                    MEASURED,
                    False,
                    f"{type(error).__name__}: {first}",
                )
            results += result if isinstance(result, list) else [result]
    return sorted([*results, *NOT_SHOWN], key=lambda entry: entry.level)


def page(certificate: Certificate) -> str:
    """The certificate as one HTML page that needs nothing else."""
    rows, last = [], ""
    for entry in certificate.checks:
        if entry.level != last:
            rows.append(
                f'<tr><th colspan="4">{entry.level}: {html.escape(LEVELS[entry.level])}</th></tr>'
            )
            last = entry.level
        cells = "".join(
            f"<td>{html.escape(cell)}</td>"
            for cell in (entry.name, entry.status, entry.scope, entry.detail)
        )
        rows.append(f'<tr class="{entry.status.replace(" ", "-")}">{cells}</tr>')
    verdict = (
        "Every check that was made holds."
        if certificate.holds
        else f"{len(certificate.failed)} checks do not hold."
    )
    facts = (
        f"{certificate.interface}, {certificate.vocab_size:,} tokens, width"
        f" {certificate.hidden_size:,}"
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Certificate: {html.escape(certificate.interface)}</title>
<style>
body {{ margin: 0 auto; max-width: 64rem; padding: 1.5rem 1rem; color: #1a1a1a;
  font: 1rem/1.5 system-ui, "DejaVu Sans", sans-serif; }}
h1 {{ font-size: 1.4rem; margin: 0; }} .scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .93rem; }} th {{ text-align: left; padding: 1.2rem 0 .2rem; }}
td {{ padding: .3rem .9rem .3rem 0; border-bottom: 1px solid #ddd; vertical-align: top; overflow-wrap: anywhere; }}
.fails td {{ font-weight: 700; }} .not-applicable td, .not-shown td {{ color: #666; }}
</style></head><body>
<h1>{verdict}</h1><p>{html.escape(facts)}<br>{html.escape(certificate.checkpoint)}</p>
<div class="scroll"><table>
{chr(10).join(rows)}
</table></div></body></html>
"""  # noqa: E501
