"""Pages by templates: one self-contained file each, that opens without a network."""

from importlib.resources import files
from typing import Any

import jinja2

from tokencodes.measured import significant


def rendered(name: str, **values: Any) -> str:
    """A page by one of the templates here; whatever is no markup of ours is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(files("tokencodes.report"))),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["significant"] = significant
    return environment.get_template(name).render(**values)
