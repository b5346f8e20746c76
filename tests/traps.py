"""A payload for files that should be data: code that leaves a trace when it runs."""

import pickle
from collections.abc import Callable
from pathlib import Path

from tokencodes.errors import CheckFailed, InputError


class Payload:
    """Opens a file for writing when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable, tuple[str, str]]:
        return open, (str(self.mark), "w")


class Trap:
    """The same payload in several languages, and whether one of them has run."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "ran"
        self.payload = Payload(self.mark)
        self.pickled = pickle.dumps(self.payload)
        self.source = f"open({str(self.mark)!r}, 'w').close()\n"
        self.template = "{{ cycler.__init__.__globals__.os.mkdir(" + repr(str(self.mark)) + ") }}"

    def ends(self, load: Callable[[], object]) -> str | None:
        """Loads. What the one line says; None where the load succeeds. Whatever happens, the
        payload does not run.
        """
        complaint = None
        try:
            load()
        except (InputError, CheckFailed) as error:
            complaint = str(error)
            assert len(complaint.splitlines()) == 1
        assert not self.mark.exists(), "code out of a file was run"
        return complaint
