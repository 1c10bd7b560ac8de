"""Methods of the user's own: an optimizer class, unchanged, or a ``Method`` in a file.

``mine.py:Mine`` is found in a file, ``package.module:Mine`` in an installed package. An optimizer
is called with the parameters that are trained, ``lr`` and, by name, whatever else has a default in
its signature. A digest of the file and of what it imports from its folder is the version of the
method, so that a changed file never reuses runs of before.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.metadata
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from badm.bench.errors import MethodError, described
from badm.bench.formatting import type_name
from badm.bench.method import (
    ANYTHING,
    Method,
    OptimizerTrainer,
    Range,
    Setting,
    StepBatch,
    Trainer,
    TrainingSetup,
    trainable_parameters,
)
from badm.bench.methods.sources import as_json
from badm.bench.names import suggestion
from badm.bench.user_code.loading import in_file, load
from badm.processes.signals import raised_by_signal

# That of Adam and most others; equal for all, so that none has more of a range to be lucky in.
RATES = Range(1e-4, 0.1)
DEFAULT_RATE = 1e-3  # where the optimizer states none
NAME = r"[\w+-][\w.+-]{0,99}"  # of a method: a part of the name of its files


class UnknownMethod(ValueError):
    """There is no method of that name."""


@dataclass(frozen=True)
class _Place:
    """A module that methods are looked for in."""

    path: str  # as it was written, for messages
    source: str  # by which other processes find it
    module: ModuleType
    version: str


def find_own(source: str, given: Mapping[str, Any], folder: Path) -> Method | None:
    """Find a method in a file or a package; ``None`` if the source names neither.

    Args:
        source: ``mine.py:Mine``, ``mine.py`` or ``package.module:Mine``.
        given: Settings that are stated; what the optimizer needs and has no default must be here.
        folder: What relative paths start from.
    """
    file = in_file(source)
    if file is not None:
        loaded = load(file[0], folder, unknown=UnknownMethod, raised=MethodError)
        place = _Place(str(file[0]), str(loaded.file), loaded.module, loaded.version)
        return _method(place, file[1] or _only_one(place), given)
    module, colon, name = source.partition(":")
    if not colon:
        return None
    return _method(_package(source, module), name, given)


def _package(source: str, name: str) -> _Place:
    if not all(part.isidentifier() for part in name.split(".")):
        raise UnknownMethod(
            f"there is no method {source!r}: write my_file.py:Name or package.module:Name"
        )
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UnknownMethod(
            f"there is no module {error.name} for the method {source!r}; the name of a file ends "
            "with .py"
        ) from None
    except BaseException as error:
        if raised_by_signal(error):
            raise
        raise MethodError(f"{name} cannot be imported: {described(error)}") from error
    return _Place(name, name, module, _installed(name) or _digest(module))


def _installed(module: str) -> str:
    """Name and version of the package that a module is installed with, or ``""``."""
    top = module.partition(".")[0]
    for package in importlib.metadata.packages_distributions().get(top, ()):
        # A local version, after a plus, says how a package was built, for example for which GPU.
        return f"{package} {importlib.metadata.version(package).partition('+')[0]}"
    return ""


def _digest(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    content = Path(file).read_bytes() if file else b""
    return hashlib.sha256(content).hexdigest()[:12]


def _only_one(place: _Place) -> str:
    """The name of the one method that a file defines."""
    names = _methods_in(place.module)
    if len(names) == 1:
        return names[0]
    which = f"choose one of {', '.join(f'{place.path}:{name}' for name in names)}"
    raise UnknownMethod(
        f"{place.path} has several methods: {which}"
        if names
        else f"{place.path} defines no method: a torch.optim.Optimizer or a badm.bench.Method"
    )


def _methods_in(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if _is_method(value, module.__name__)]


def _is_method(value: Any, module: str) -> bool:
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer):
        return value.__module__ == module
    return isinstance(value, Method)


def _method(place: _Place, name: str, given: Mapping[str, Any]) -> Method:
    found: Any = place.module
    for part in name.split("."):
        found = getattr(found, part, None)
    own = f"{place.source}:{name}"
    if found is None:
        names = _methods_in(place.module)
        near = suggestion(name, names) or (f"it has {', '.join(names)}" if names else "")
        raise UnknownMethod(f"{place.path} has no {name!r}{'; ' if near else ''}{near}".rstrip())
    if isinstance(found, Method):
        return _stated(found, place, own)
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        raise UnknownMethod(
            f"{place.path}:{name} must be a torch.optim.Optimizer, a function that returns one or "
            f"a badm.bench.Method, got {type_name(found)}"
        )
    return _of_optimizer(found, place, name, own, given)


def _stated(method: Method, place: _Place, source: str) -> Method:
    """A method that a file states, whose version is that of the file."""
    if not re.fullmatch(NAME, method.name):
        raise UnknownMethod(
            f"the name of the method {source} must be letters, digits and - . _ +, "
            f"got {method.name!r}"
        )
    return replace(method, version=f"{method.version}, {place.version}", source=source)


def _of_optimizer(
    make: Callable[..., Any], place: _Place, name: str, source: str, given: Mapping[str, Any]
) -> Method:
    defaults = _defaults(make, f"{place.path}:{name}", given)
    rate = defaults["lr"]
    limits: dict[str, Any] = {one: ANYTHING for one in defaults if one != "lr"}
    about = (inspect.getdoc(make) or "").partition("\n")[0]
    package = "" if make.__module__ == place.module.__name__ else _installed(make.__module__)
    version = place.version if package in ("", place.version) else f"{place.version}, {package}"

    def build(setup: TrainingSetup, setting: Setting) -> Trainer:
        arguments = {key: _as_tuples(value) for key, value in setting.items()}
        return OwnTrainer(_checked(make(trainable_parameters(setup.module), **arguments), name))

    return Method(
        name.replace(".", "-"),
        about[:200] or f"{name} of {Path(place.path).name}",
        "peer",
        build,
        defaults,
        {"lr": RATES if RATES.low <= rate <= RATES.high else Range(rate / 30, rate * 30)},
        limits=limits,
        version=version,
        source=source,
    )


def _defaults(make: Callable[..., Any], source: str, given: Mapping[str, Any]) -> Setting:
    """What the optimizer takes beside the parameters, with the defaults that it states."""
    try:
        _, *rest = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        raise UnknownMethod(
            f"{source} must take the parameters first and lr, and its signature cannot be read"
        ) from None
    takes = [p for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in rest)
    names = [p.name for p in takes]
    if "lr" not in names and not takes_any:
        raise UnknownMethod(
            f"{source} must take lr, as every learning rate is tried by that name: it takes "
            f"{', '.join(names) or 'nothing but the parameters'}; a badm.bench.Method in the file "
            "can call it otherwise"
        )
    needed = [p.name for p in takes if p.default is p.empty and p.name not in {"lr", *given}]
    if needed:
        example = ",".join(f"{one}=..." for one in needed)
        raise UnknownMethod(f"{source} needs {', '.join(needed)}: write {source}[{example}]")
    unknown = [one for one in given if one not in names] if not takes_any else []
    if unknown:
        raise UnknownMethod(
            f"{source} takes {', '.join(names)}, got {unknown[0]}; "
            f"{suggestion(unknown[0], names)}".rstrip("; ")
        )
    stated = {p.name: p.default for p in takes if p.default is not p.empty}
    defaults = {key: as_json(value) for key, value in stated.items() if _is_json(value)}
    rate = defaults.get("lr")
    is_rate = isinstance(rate, (int, float)) and not isinstance(rate, bool)
    lr = float(rate) if is_rate and rate > 0 else DEFAULT_RATE  # type: ignore[arg-type, operator]
    return {**defaults, **given, "lr": lr}


def _is_json(value: Any) -> bool:
    try:
        as_json(value)
    except TypeError:
        return False
    return True


def _as_tuples(value: Any) -> Any:
    """Lists as tuples, which optimizers take their betas as."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _checked(made: Any, name: str) -> torch.optim.Optimizer:
    for needed in ("step", "param_groups", "state_dict", "load_state_dict"):
        if not hasattr(made, needed):
            raise TypeError(
                f"{name} must make an optimizer, and its {type_name(made)} has no {needed}"
            )
    optimizer: torch.optim.Optimizer = made
    return optimizer


class OwnTrainer(OptimizerTrainer):
    """Train with an optimizer that may want a closure, or evaluate other weights than it trains.

    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> OwnTrainer(torch.optim.LBFGS([weight])).takes_closure
    True
    """

    optimizer: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            step = inspect.signature(self.optimizer.step).parameters
        except (TypeError, ValueError):
            step = {}  # type: ignore[assignment]
        self.takes_closure = any(
            p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in step.values()
        )
        # As of Schedule-Free: it says which weights are wanted by two methods.
        self.has_modes = all(callable(getattr(self.optimizer, m, None)) for m in ("train", "eval"))
        if self.has_modes:
            self.optimizer.train()

    def step(self, batch: StepBatch) -> float:
        if not self.takes_closure:
            return super().step(batch)
        losses: list[float] = []

        def closure() -> torch.Tensor:
            losses.append(batch.gradient())
            return torch.tensor(losses[-1])

        self.set_rates(batch.lr_factor)
        with torch.enable_grad():
            self.optimizer.step(closure)
        return losses[0]

    @contextmanager
    def evaluation_weights(self) -> Iterator[None]:
        if self.has_modes:
            self.optimizer.eval()
        try:
            yield
        finally:
            if self.has_modes:
                self.optimizer.train()


def source_of(method: type[torch.optim.Optimizer] | Method | Callable[..., Any]) -> str:
    """What other processes find a class or a ``Method`` by.

    >>> source_of(torch.optim.AdamW)
    'torch.optim.adamw:AdamW'
    """
    if isinstance(method, Method):
        return method.source or _variable(method)
    name = getattr(method, "__qualname__", "")
    module = sys.modules.get(getattr(method, "__module__", ""))
    if module is None or not name or "<locals>" in name:
        raise ValueError(
            f"a method must be a name, an optimizer class or a Method of a file, got {method!r}"
        )
    return f"{_importable_by(module, name)}:{name}"


def _variable(method: Method) -> str:
    """Find the variable of a module that holds a method."""
    for module in [*sys.modules.values()]:
        for name, value in [*getattr(module, "__dict__", {}).items()]:
            if value is method and _is_assigned(module, name):
                return f"{_importable_by(module, name)}:{name}"
    raise ValueError(
        f"the method {method.name} must be a variable of a .py file: its runs are done by other "
        "processes, which have to find it there"
    )


def _is_assigned(module: ModuleType, name: str) -> bool:
    """Whether a module makes a variable, and does not import it from another."""
    try:
        tree = ast.parse(Path(module.__file__ or "").read_bytes())
    except (OSError, ValueError, SyntaxError):
        return False
    targets = [t for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _importable_by(module: ModuleType, name: str) -> str:
    """The file of a script or of a module beside it; the name of a module that is installed."""
    if _installed(module.__name__):
        return module.__name__
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py"):
        raise ValueError(
            f"{name} must be in a .py file: its runs are done by other processes, which have to "
            "find it there"
        )
    return str(Path(file).absolute())
