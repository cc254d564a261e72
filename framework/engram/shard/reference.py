"""Apps by reference: `package.module:app`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from engram.errors import Misuse
from engram.model.app import App


def resolve_app(reference: str) -> App:
    """Imports the module and returns the app it holds under the name after the colon."""
    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute or module_name.startswith("."):
        raise Misuse(f"{reference!r} names no app: write MODULE:NAME, such as sample_apps.social:app")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not module_name.startswith(problem.name):
            raise  # the module is there, and something that it imports is not
        raise Misuse(
            f"There is no module {module_name!r} (looked in {sys.path[0] or 'this folder'} and the installed "
            "packages): start from the folder that holds it, or set PYTHONPATH."
        ) from None
    found = getattr(module, attribute, None)
    if not isinstance(found, App):
        apps = [name for name, value in vars(module).items() if isinstance(value, App)]
        hint = f"It has: {', '.join(apps)}." if apps else "It holds no App at all."
        raise Misuse(f"{module_name} has no App named {attribute!r}. {hint}")
    return found


def resolve_app_at(reference: str, folder: str = "") -> App:
    """The app of a reference, looked for in `folder` first. Modules from there are forgotten afterwards: the same names
    may mean others elsewhere, such as in another version of the same code. What a handler imports only when it runs is
    then that of the others."""
    if not folder:
        return resolve_app(reference)
    place = str(Path(folder).absolute())
    top = reference.partition(":")[0].partition(".")[0]
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == top}
    sys.path.insert(0, place)
    try:
        return resolve_app(reference)
    finally:
        sys.path.remove(place)
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(place) or name.partition(".")[0] == top:
                del sys.modules[name]
        sys.modules.update(kept)
